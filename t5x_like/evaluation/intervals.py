"""Numbers with bootstrap intervals: percentiles over resampled sets of examples.

Efron and Tibshirani 1993, chapter 13. A measure keeps a row of counts for each example, or for each
group of examples that belong together; a resample draws as many rows with replacement, and computes
its number from them.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from jaxtyping import Float

from t5x_like.experiment.estimates import Estimate

RESAMPLES = 1000
_SEED = 0


@dataclasses.dataclass(frozen=True)
class Statistics:
    """The counts of a measure, and the function that computes its numbers from them.

    Attributes:
        rows: counts [N, K] of each example, or of each group of examples.
        reduce: computes {name: number} from rows; the names do not depend on the rows.
    """

    rows: Float[np.ndarray, "N K"]
    reduce: Callable[[Float[np.ndarray, "N K"]], Mapping[str, float]]

    def numbers(self) -> dict[str, float]:
        """Return the numbers computed from all rows."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return {name: float(value) for name, value in self.reduce(self.rows).items()}

    def estimates(self) -> dict[str, float]:
        """Return the numbers as `Estimate`s; the resampling always has the same seed."""
        found, size = self.numbers(), len(self.rows)
        random = np.random.default_rng(_SEED)
        samples: dict[str, list[float]] = {name: [] for name in found}
        with np.errstate(invalid="ignore", divide="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a resample may have only one class or number
            for _ in range(RESAMPLES):
                values = self.reduce(self.rows[random.integers(size, size=size)])
                for name, value in values.items():
                    samples[name].append(float(value))
        return {name: Estimate(found[name], np.array(samples[name])) for name in found}


def means(*names: str) -> Callable[[Float[np.ndarray, "N K"]], dict[str, float]]:
    """Return a `reduce` that computes the mean of each column, with these names."""

    def reduce(rows: Float[np.ndarray, "N K"]) -> dict[str, float]:
        return dict(zip(names, rows.mean(axis=0), strict=True))

    return reduce


def mean(values: Iterable[float]) -> float:
    """Return the mean of numbers, an `Estimate` if all of the numbers are."""
    values = list(values)
    value = math.fsum(values) / len(values)
    samples = [one.samples for one in values if isinstance(one, Estimate)]
    if len(samples) < len(values):
        return value
    return Estimate(value, np.mean(samples, axis=0))
