"""Metrics of classes and of numbers: accuracy, F1, correlations, squared and absolute errors."""

import collections
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like.evaluation.metrics.metric import Statistics, means

ExampleRows = Float[np.ndarray, "N K"]


def accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> Statistics:
    """The share of predictions that equal their target, or one of a list of targets."""
    right = [
        prediction in target if isinstance(target, list | tuple) else prediction == target
        for target, prediction in zip(targets, predictions, strict=True)
    ]
    return Statistics(np.array(right, float)[:, None], means("accuracy"))


def constants(targets: Sequence[Any]) -> list[list[Any]]:
    """Return constant predictions of the two most frequent classes, which include the best.

    If the positive class is the rarer class, its F1 is largest if everything is predicted positive.
    """
    each = [classes if isinstance(classes, list | tuple) else [classes] for classes in targets]
    counted = collections.Counter(name for classes in each for name in set(classes))
    return [[name] * len(targets) for name, _ in counted.most_common(2)]


def matthews(targets: Sequence[Hashable], predictions: Sequence[Hashable]) -> Statistics:
    """The Matthews correlation coefficient of two or more classes, from -1 to 1.

    0 if all targets or all predictions are of one class. For more than two classes it is Gorodkin's
    R_K (2004).
    """
    rows, names = _numbered(targets, predictions)

    def reduce(rows: ExampleRows) -> dict[str, float]:
        table = _table(rows, size=len(names) + 1)
        total, right, predicted = table.sum(), table.sum(axis=1), table.sum(axis=0)
        spread = (total**2 - right @ right) * (total**2 - predicted @ predicted)
        covariance = np.trace(table) * total - right @ predicted
        return {"matthews": covariance / np.sqrt(spread) if spread else 0.0}

    return Statistics(rows, reduce)


def f1(targets: Sequence[Hashable], predictions: Sequence[Hashable], *, average: str) -> Statistics:
    """F1 of the classes that occur among targets and predictions.

    Args:
        average: "macro", the mean over classes; "micro", computed over all decisions; or
            "per_class", `f1/NAME` of each class.
    """
    rows, names = _numbered(targets, predictions)

    def reduce(rows: ExampleRows) -> dict[str, float]:
        common, sums = _counts(_table(rows, size=len(names) + 1), of=len(names))
        if average == "micro":
            return {"f1_micro": float(_f1(common.sum(), sums.sum()))}
        each = _f1(common, sums)
        if average == "per_class":
            return {f"f1/{name}": value for name, value in zip(names, each, strict=True)}
        # Classes that a resample lacks have no F1.
        return {"f1_macro": float(np.mean(each[sums > 0]))}

    return Statistics(rows, reduce)


def f1_binary(
    targets: Sequence[Hashable], predictions: Sequence[Hashable], *, positive: Hashable
) -> Statistics:
    """F1 of the positive of two classes; a prediction that is neither counts as the wrong class.

    So does T5's `f1_score_with_invalid`, for -1 of `string_label_to_class_id`.
    """
    classes = {*targets, positive}
    is_positive = [target == positive for target in targets]
    is_predicted = [
        prediction == positive if prediction in classes else not right
        for right, prediction in zip(is_positive, predictions, strict=True)
    ]

    def reduce(rows: ExampleRows) -> dict[str, float]:
        common, sums = _counts(_table(rows, size=2), of=2)
        return {"f1_binary": float(_f1(common[1], sums[1]))}

    return Statistics(np.array([is_positive, is_predicted], float).T, reduce)


def rank_accuracy(targets: Sequence[Any], scores: Sequence[Sequence[float]]) -> Statistics:
    """The share of examples in which a right class or choice has the largest score."""
    best = [int(np.argmax(example_scores)) for example_scores in scores]
    statistics = accuracy(targets, best)
    return Statistics(statistics.rows, means("rank_accuracy"))


def roc_auc(targets: Sequence[int], scores: Sequence[Sequence[float]]) -> Statistics:
    """The area under the ROC curve of two classes; class 1 is positive.

    It is the share of pairs of a positive and a negative example in which the positive one scores
    higher; ties count half. NaN if all targets are of one class.

    Raises:
        ValueError: an example does not have two scores.
    """
    from scipy import stats

    if any(len(example_scores) != 2 for example_scores in scores):
        raise ValueError(f"roc_auc needs the scores of two classes, not {len(scores[0])}")

    def reduce(rows: ExampleRows) -> dict[str, float]:
        positive = rows[:, 0] == 1
        number, others = positive.sum(), (~positive).sum()
        ranks = stats.rankdata(rows[:, 1])[positive].sum()
        pairs = number * others
        return {"roc_auc": (ranks - number * (number + 1) / 2) / pairs if pairs else np.nan}

    rows = [
        [target, example_scores[1] - example_scores[0]]
        for target, example_scores in zip(targets, scores, strict=True)
    ]
    return Statistics(np.array(rows, float), reduce)


def _numbered(
    targets: Sequence[Hashable], predictions: Sequence[Hashable]
) -> tuple[ExampleRows, list[Hashable]]:
    """Return the class ids of targets and predictions [N, 2], and the classes; None comes last."""
    names: list[Any] = sorted({*targets, *predictions} - {None}, key=lambda name: (str(name), name))
    numbers = {name: number for number, name in enumerate(names)}
    pairs = zip(targets, predictions, strict=True)
    rows = [[numbers[target], numbers.get(prediction, len(names))] for target, prediction in pairs]
    return np.array(rows, float), names


def _table(rows: ExampleRows, *, size: int) -> np.ndarray:
    """Return the confusion matrix [size, size], with rows for targets, columns for predictions."""
    cells = (rows[:, 0] * size + rows[:, 1]).astype(int)
    return np.bincount(cells, minlength=size * size).reshape(size, size).astype(float)


def _counts(table: np.ndarray, *, of: int) -> tuple[np.ndarray, np.ndarray]:
    """Return for each class its right predictions, and the sum of its targets and predictions."""
    return np.diagonal(table)[:of], table.sum(axis=1)[:of] + table.sum(axis=0)[:of]


def _f1(common: np.ndarray | np.integer, sums: np.ndarray | np.integer) -> np.ndarray:
    """Return 2 common / sums; 0 without targets and predictions."""
    return np.where(sums > 0, 2 * common / np.maximum(sums, 1), 0.0)


f1_macro = functools.partial(f1, average="macro")
f1_micro = functools.partial(f1, average="micro")
f1_per_class = functools.partial(f1, average="per_class")


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
