"""Metrics of numbers: Pearson and Spearman correlation, and squared and absolute errors."""

from collections.abc import Callable, Sequence

import numpy as np

from t5x_like.evaluation.intervals import Statistics, means


def pearson(targets: Sequence[float], predictions: Sequence[float]) -> Statistics:
    """The Pearson correlation coefficient; NaN if all targets or all predictions are equal."""
    from scipy import stats

    return _correlation("pearson", stats.pearsonr, targets, predictions)


def spearman(targets: Sequence[float], predictions: Sequence[float]) -> Statistics:
    """The Spearman rank correlation coefficient, with ties at their mean rank."""
    from scipy import stats

    return _correlation("spearman", stats.spearmanr, targets, predictions)


def _correlation(
    name: str, correlate: Callable[..., tuple[float, float]], *pairs: Sequence[float]
) -> Statistics:
    def reduce(rows: np.ndarray) -> dict[str, float]:
        constant = len(rows) < 2 or not np.ptp(rows, axis=0).all()
        return {name: np.nan if constant else correlate(rows[:, 0], rows[:, 1])[0]}

    return Statistics(np.array(pairs, float).T, reduce)


def mean_squared_error(targets: Sequence[float], predictions: Sequence[float]) -> Statistics:
    """The mean of (prediction - target)^2."""
    errors = np.array(predictions, float) - np.array(targets, float)
    return Statistics(errors[:, None] ** 2, means("mean_squared_error"))


def mean_absolute_error(targets: Sequence[float], predictions: Sequence[float]) -> Statistics:
    """The mean of |prediction - target|."""
    errors = np.array(predictions, float) - np.array(targets, float)
    return Statistics(np.abs(errors)[:, None], means("mean_absolute_error"))
