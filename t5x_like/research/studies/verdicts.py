"""Verdicts on claims, from the paired differences of seeds, with Student's t interval.

A study may be looked at while seeds are added; its intervals are then wider.
"""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from t5x_like.research.studies.definition import Claim, Learned, Study

FILE = "looks.json"  # in the folder of a study's runs
_PATHS = 200_000  # simulated studies; the error of the 5% is 0.05%


@dataclasses.dataclass(frozen=True)
class Looks:
    """A look after `first` seeds, and after each further seed up to `most`.

    Raises:
        ValueError: `first` is below 2 (one seed has no interval), or `most` is below `first`.
    """

    first: int
    most: int

    def __post_init__(self) -> None:
        if not 2 <= self.first <= self.most:
            raise ValueError(
                f"a study that adds seeds needs 2 or more at first, and no more than --most_seeds: "
                f"{self.first} and {self.most}"
            )

    def errors(self, seeds: int, *, level: float) -> float:
        """Return the standard errors of the interval of this look; infinite before the first.

        Raises:
            ValueError: there are more seeds than `most`.
        """
        if seeds > self.most:
            raise ValueError(f"{seeds} seeds are more than the {self.most} that were planned")
        if seeds < self.first:
            return math.inf
        return critical_values(self.first, self.most, level)[seeds - self.first]


@functools.cache
def critical_values(first: int, most: int, level: float) -> tuple[float, ...]:
    """Return for each look the bound on |t|, such that all looks together exceed it in 1 - level.

    t is the mean of the differences in standard errors. The spending function is Pocock's, in the
    share of `most` seeds: alpha log(1 + (e - 1) n / most). The distribution of the t of all looks
    is simulated for normal differences without an effect, on which it depends in nothing else; at
    each look the paths with the largest |t| are those that stop.
    """
    generator = np.random.default_rng(0)
    alive = np.ones(_PATHS, bool)
    total, squares = np.zeros(_PATHS), np.zeros(_PATHS)
    bounds, stopped = [], 0
    for size in range(1, most + 1):
        draws = generator.standard_normal(_PATHS)
        total += draws
        squares += draws**2
        if size < first:
            continue
        variance = (squares - total**2 / size) / (size - 1)
        t = np.abs(total / size) / np.sqrt(variance / size)
        spent = (1 - level) * math.log1p((math.e - 1) * size / most)
        stopping = max(round(_PATHS * spent) - stopped, 1)
        bound = float(np.partition(t[alive], -stopping)[-stopping])
        alive &= t < bound
        stopped += stopping
        bounds.append(bound)
    return tuple(bounds)


def begin(folder: pathlib.Path, looks: Looks) -> Looks:
    """Store the looks of a study in the folder of its runs before its first.

    Raises:
        ValueError: the study was begun with other looks, which its intervals depend on.
    """
    before = stored(folder)
    if before not in (None, looks):
        assert before is not None
        raise ValueError(
            f"{folder} was begun with looks after {before.first} to {before.most} seeds, which "
            f"cannot change: set --most_seeds={before.most} and {before.first} seeds at first"
        )
    if before is None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text(json.dumps(dataclasses.asdict(looks)) + "\n")
    return looks


def stored(folder: pathlib.Path) -> Looks | None:
    """Return the looks of a study that adds seeds; None if its seeds are fixed."""
    file = folder / FILE
    return Looks(**json.loads(file.read_text())) if file.is_file() else None


HELD, NOT_HELD, EQUAL, OPEN = "held", "did not hold", "equal", "cannot be told apart"
LEVEL = 0.95

# {arm: {measure: {seed: value}}}, in the scale of the measure
Values = Mapping[str, Mapping[str, Mapping[int, float]]]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict of a study on a claim.

    Attributes:
        claim: the claim.
        verdict: HELD, NOT_HELD, EQUAL or OPEN; "" if the arms have no finished seed in common.
        difference: the mean over seeds of first arm minus second, NaN without a common seed.
        interval: interval of this mean; infinite with fewer than two seeds.
        seeds: number of seeds that both arms have.
    """

    claim: Claim
    verdict: str
    difference: float
    interval: tuple[float, float]
    seeds: int


@dataclasses.dataclass(frozen=True)
class Check:
    """Whether an arm has learned.

    Attributes:
        learned: what it must be better than.
        value: the mean over seeds, NaN without a finished seed.
        interval: of this mean.
        passed: whether the value is better, and so is all of the interval, if there is one.
    """

    learned: Learned
    value: float
    interval: tuple[float, float]
    passed: bool


def t_interval(values: Sequence[float], *, looks: Looks | None = None) -> tuple[float, float]:
    """Return the 95% interval of the mean of some values; infinite for fewer than two values.

    Args:
        values: one number for each seed.
        looks: the looks at the study, if seeds are added; it is infinite before the first.
    """
    from scipy import stats

    size = len(values)
    if size < 2:
        return -math.inf, math.inf
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(size)
    if looks is None:
        errors = float(stats.t.ppf((1 + LEVEL) / 2, size - 1))
    else:
        errors = looks.errors(size, level=LEVEL)
    wide = errors * error if math.isfinite(errors) else math.inf
    return mean - wide, mean + wide


def checks(study: Study, values: Values) -> list[Check]:
    """Return whether the arms of `study.learned` have learned."""
    checked = []
    for learned in study.learned:
        seed_values = list(values.get(learned.arm, {}).get(learned.measure, {}).values())
        value = float(np.mean(seed_values)) if seed_values else math.nan
        low, high = t_interval(seed_values)
        smaller = study.measures[learned.measure].smaller_is_better
        ends = [high if smaller else low] if len(seed_values) > 1 else []
        better = [
            bound < learned.than if smaller else bound > learned.than for bound in (value, *ends)
        ]
        checked.append(Check(learned, value, (low, high), all(better)))
    return checked


def judge(study: Study, values: Values, *, looks: Looks | None = None) -> list[Verdict]:
    """Return the verdict on each claim.

    Args:
        looks: the looks at the study, if seeds are added until claims are decided.
    """
    return [_judge(claim, study, values, looks) for claim in study.claims]


def _judge(claim: Claim, study: Study, values: Values, looks: Looks | None) -> Verdict:
    first, second = (values[arm][claim.measure] for arm in (claim.arm, claim.than))
    differences = [first[seed] - second[seed] for seed in first if seed in second]
    if not differences:
        return Verdict(claim, "", math.nan, (-math.inf, math.inf), 0)
    sign = -1 if study.measures[claim.measure].smaller_is_better else 1
    # A claim keeps the verdict of the look that decided it, whatever seeds are added for others.
    sizes = range(min(looks.first, len(differences)), len(differences)) if looks else ()
    for size in sizes:
        verdict = _look(claim, differences[:size], looks, sign=sign)
        if verdict.verdict != OPEN:
            return verdict
    return _look(claim, differences, looks, sign=sign)


def _look(claim: Claim, differences: Sequence[float], looks: Looks | None, *, sign: int) -> Verdict:
    low, high = t_interval(differences, looks=looks)
    if claim.within:
        inside = -claim.within <= low and high <= claim.within
        outside = low > claim.within or high < -claim.within
    else:
        inside, outside = (low > 0, high < 0) if sign > 0 else (high < 0, low > 0)
    verdict = HELD if inside else NOT_HELD if outside else OPEN
    # Also if one arm is surely better: by less than matters.
    if claim.margin and -claim.margin <= low and high <= claim.margin:
        verdict = EQUAL
    return Verdict(claim, verdict, float(np.mean(differences)), (low, high), len(differences))
