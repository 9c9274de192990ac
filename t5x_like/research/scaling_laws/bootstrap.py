"""Bootstrap intervals of fitted quantities."""

import warnings
from collections.abc import Callable, Iterable, Mapping

import numpy as np

FittedNumbers = Mapping[str, float]
LEVEL = 0.95
_LEAST_SHARE = 0.5  # the share of resamples that must have a fit


def intervals(
    statistics: Callable[[np.random.Generator], FittedNumbers | None], *, times: int, seed: int
) -> dict[str, list[float]] | None:
    """Return the central 95% interval of each statistic over resamples (percentile bootstrap).

    Args:
        statistics: draws a resample and returns its statistics; None if it has no fit.
        times: the number of resamples; 0 for no intervals.
        seed: the seed of the resamples.

    Returns:
        {name: [low, high]}; None if more than half of the resamples had no fit.
    """
    resampled: list[FittedNumbers] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a resample may be degenerate
        for rng in np.random.default_rng(seed).spawn(times):
            fitted = statistics(rng)
            if fitted is not None and all(np.isfinite(list(fitted.values()))):
                resampled.append(fitted)
    if not resampled or len(resampled) < _LEAST_SHARE * times:
        return None
    tail = (1 - LEVEL) / 2
    return {
        name: [
            float(x) for x in np.quantile([fitted[name] for fitted in resampled], (tail, 1 - tail))
        ]
        for name in resampled[0]
    }


def excluded(value: float, interval: Iterable[float] | None) -> bool | None:
    """Return whether a value lies outside an interval; None without an interval."""
    if interval is None:
        return None
    low, high = interval
    return not low <= value <= high
