"""Verdicts on claims, from the paired differences of seeds, with Student's t interval.

The cells of a seed share the order of the data and the random numbers of the initial parameters, as
far as their arms allow, so differences are taken seed by seed. The interval is Student's t with n -
1 degrees of freedom, which assumes that the differences are approximately normal: with the
affordable three to five seeds, a bootstrap would resample as few values, and its percentile
interval, never wider than their range, would be far too narrow. The interval covers other seeds,
not other test examples, and is not corrected for the number of claims.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from t5x_like.studies.definition import Claim, Study

HELD, NOT_HELD, OPEN = "held", "did not hold", "cannot be told apart"
LEVEL = 0.95

# {arm: {measure: {seed: value}}}, in the scale of the measure
Values = Mapping[str, Mapping[str, Mapping[int, float]]]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict of a study on a claim.

    Attributes:
        claim: the claim.
        verdict: HELD, NOT_HELD or OPEN; "" if the arms have no finished seed in common.
        difference: the mean over seeds of first arm minus second, NaN without a common seed.
        interval: interval of this mean; infinite with fewer than two seeds.
        seeds: number of seeds that both arms have.
    """

    claim: Claim
    verdict: str
    difference: float
    interval: tuple[float, float]
    seeds: int


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval of the mean of some values; infinite for fewer than two values."""
    from scipy import stats

    size = len(values)
    if size < 2:
        return -math.inf, math.inf
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(size)
    wide = float(stats.t.ppf((1 + LEVEL) / 2, size - 1)) * error
    return mean - wide, mean + wide


def judge(study: Study, values: Values) -> list[Verdict]:
    """Return the verdict on each claim."""
    return [_judge(claim, study, values) for claim in study.claims]


def _judge(claim: Claim, study: Study, values: Values) -> Verdict:
    first, second = (values[arm][claim.measure] for arm in (claim.arm, claim.than))
    differences = [first[seed] - second[seed] for seed in first if seed in second]
    if not differences:
        return Verdict(claim, "", math.nan, (-math.inf, math.inf), 0)
    low, high = t_interval(differences)
    sign = -1 if study.measures[claim.measure].smaller_is_better else 1
    if claim.within:
        inside = -claim.within <= low and high <= claim.within
        outside = low > claim.within or high < -claim.within
    else:
        inside, outside = (low > 0, high < 0) if sign > 0 else (high < 0, low > 0)
    verdict = HELD if inside else NOT_HELD if outside else OPEN
    return Verdict(claim, verdict, float(np.mean(differences)), (low, high), len(differences))
