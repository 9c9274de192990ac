"""Verdicts on claims, from the paired differences of seeds, with Student's t interval.

The cells of a seed share the order of the data and the random numbers of the initial parameters, as
far as their arms allow, so differences are taken seed by seed. The interval is Student's t with n -
1 degrees of freedom, which assumes that the differences are approximately normal: with the
affordable three to five seeds, a bootstrap would resample as few values, and its percentile
interval, never wider than their range, would be far too narrow. The interval covers other seeds,
not other test examples, and is not corrected for the number of claims. If seeds are added until
claims are decided, the intervals are wider (`looks`).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from t5x_like.studies.definition import Claim, Learned, Study
from t5x_like.studies.looks import Looks

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
    found = []
    for learned in study.learned:
        own = list(values.get(learned.arm, {}).get(learned.measure, {}).values())
        value = float(np.mean(own)) if own else math.nan
        low, high = t_interval(own)
        smaller = study.measures[learned.measure].smaller_is_better
        ends = [high if smaller else low] if len(own) > 1 else []
        better = [one < learned.than if smaller else one > learned.than for one in (value, *ends)]
        found.append(Check(learned, value, (low, high), all(better)))
    return found


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
        found = _look(claim, differences[:size], looks, sign=sign)
        if found.verdict != OPEN:
            return found
    return _look(claim, differences, looks, sign=sign)


def _look(claim: Claim, differences: Sequence[float], looks: Looks | None, *, sign: int) -> Verdict:
    low, high = t_interval(differences, looks=looks)
    if claim.within:
        inside = -claim.within <= low and high <= claim.within
        outside = low > claim.within or high < -claim.within
    else:
        inside, outside = (low > 0, high < 0) if sign > 0 else (high < 0, low > 0)
    verdict = HELD if inside else NOT_HELD if outside else OPEN
    if verdict == OPEN and claim.margin and -claim.margin <= low and high <= claim.margin:
        verdict = EQUAL
    return Verdict(claim, verdict, float(np.mean(differences)), (low, high), len(differences))
