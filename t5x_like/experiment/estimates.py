"""Numbers with a 95% interval, and their form in logs and tables."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Float

_PERCENTILES = (2.5, 97.5)


class Estimate(float):
    """A number, with its values on resampled sets of examples.

    Attributes:
        samples: the number on each of many resampled sets, NaN if it is undefined there.
    """

    samples: Float[np.ndarray, " R"]

    def __new__(cls, value: float, samples: Float[np.ndarray, " R"]) -> "Estimate":
        """Make a float with samples."""
        made = super().__new__(cls, value)
        made.samples = samples
        return made

    @property
    def interval(self) -> tuple[float, float]:
        """The bounds of the 95% interval; NaN if the number is undefined on all resampled sets."""
        if np.isnan(self.samples).all():
            return math.nan, math.nan
        low, high = np.nanpercentile(self.samples, _PERCENTILES)
        return float(low), float(high)


def bounds(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return the interval bounds of the `Estimate`s, as NAME/low and NAME/high."""
    intervals = {
        name: value.interval for name, value in numbers.items() if isinstance(value, Estimate)
    }
    return {
        f"{name}/{end}": bound
        for name, interval in intervals.items()
        for end, bound in zip(("low", "high"), interval, strict=True)
    }


def table(results: Mapping[str, Mapping[str, float]], *, step: int) -> Iterator[str]:
    """Yield lines for the terminal: the numbers of each task, with their intervals."""
    for task, values in results.items():
        yield f"{task} at step {step}:"
        for name, value in values.items():
            interval = ""
            if isinstance(value, Estimate):
                low, high = value.interval
                interval = f"  [{low:.4f}, {high:.4f}]"
            yield f"  {name:28} {value:.4f}{interval}"
