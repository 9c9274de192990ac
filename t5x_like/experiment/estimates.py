"""Numbers with a 95% interval, and how a run and an evaluation show them."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Float

_PERCENTILES = (2.5, 97.5)


class Estimate(float):
    """A number, with its values on resampled sets of examples.

    Attributes:
        samples: the number on each of many resampled sets, NaN where it is not defined.
    """

    samples: Float[np.ndarray, " R"]

    def __new__(cls, value: float, samples: Float[np.ndarray, " R"]) -> "Estimate":
        """Make a number of its value and its samples."""
        made = super().__new__(cls, value)
        made.samples = samples
        return made

    @property
    def interval(self) -> tuple[float, float]:
        """The bounds of the 95% interval; NaN if no resample defines the number."""
        if np.isnan(self.samples).all():
            return math.nan, math.nan
        low, high = np.nanpercentile(self.samples, _PERCENTILES)
        return float(low), float(high)


def bounds(numbers: Mapping[str, float]) -> dict[str, float]:
    """The bounds of the intervals of those numbers that have one, as NAME/low and NAME/high."""
    intervals = {
        name: value.interval for name, value in numbers.items() if isinstance(value, Estimate)
    }
    return {
        f"{name}/{end}": bound
        for name, interval in intervals.items()
        for end, bound in zip(("low", "high"), interval, strict=True)
    }


def table(results: Mapping[str, Mapping[str, float]], *, step: int) -> Iterator[str]:
    """Lines for the terminal: the numbers of each task, with their intervals."""
    for task, values in results.items():
        yield f"{task} at step {step}:"
        for name, value in values.items():
            interval = ""
            if isinstance(value, Estimate):
                low, high = value.interval
                interval = f"  [{low:.4f}, {high:.4f}]"
            yield f"  {name:28} {value:.4f}{interval}"
