"""The interface of metrics, functions of targets and predictions, and bootstrap intervals.

An interval has percentiles over resampled sets of examples.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from t5x_like.experiment.reporting import Estimate

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
        """Return an `Estimate` of each number; the resampling always has the same seed."""
        numbers, size = self.numbers(), len(self.rows)
        random = np.random.default_rng(_SEED)
        samples: dict[str, list[float]] = {name: [] for name in numbers}
        with np.errstate(invalid="ignore", divide="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a resample may have only one class or number
            for _ in range(RESAMPLES):
                values = self.reduce(self.rows[random.integers(size, size=size)])
                for name, value in values.items():
                    samples[name].append(float(value))
        return {name: Estimate(numbers[name], np.array(samples[name])) for name in numbers}


def means(*names: str) -> Callable[[Float[np.ndarray, "N K"]], dict[str, float]]:
    """Return a `reduce` that computes the mean of each column, with these names."""

    def reduce(rows: Float[np.ndarray, "N K"]) -> dict[str, float]:
        return dict(zip(names, rows.mean(axis=0), strict=True))

    return reduce


def mean(values: Iterable[float]) -> float:
    """Return the mean of numbers, an `Estimate` if all of the numbers are."""
    values = list(values)
    value = math.fsum(values) / len(values)
    samples = [number.samples for number in values if isinstance(number, Estimate)]
    if len(samples) < len(values):
        return value
    return Estimate(value, np.mean(samples, axis=0))


CLASS, NUMBER, TAGS, TEXT, CHOICE = "class", "number", "tags", "text", "choice"
LABELS, FACTS, SPANS = "labels", "facts", "spans"


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric with seqio's interface, `metric(targets, predictions) -> {name: value}`.

    It can be used in the `metric_fns` of a `seqio.Task`.

    Attributes:
        fits: the kinds of predictions that it compares: CLASS, the name or index of a class;
            NUMBER; TAGS, a list with a tag for each word; TEXT, whose target may be a list of right
            texts; CHOICE, the index of a choice; LABELS, whose target is a mapping of labels of a
            text; FACTS, mappings of an `answer` and its `facts`; SPANS,
            mappings of a `long` and a `short` answer.
        count: computes `Statistics` from (targets, predictions), and `positive=` for a binary
            metric.
        smaller_is_better: True for an error, False for an accuracy.
        positive: the positive class of a binary metric; None for any other metric.
        numbers: the names of its numbers, with "/*" for one per class or type; empty if its only
            number has the metric's name.
        grouped: whether targets are mappings with `group` and `value`, see `metrics.groups`.
        constants: returns, for the targets, constant predictions that include the best; None if the
            metric needs no such baseline.
        by_score: whether it compares scores rather than predictions, see `ScoreMetric`.
    """

    fits: tuple[str, ...]
    count: Callable[..., Statistics]
    smaller_is_better: bool = False
    positive: Hashable = None
    numbers: tuple[str, ...] = ()
    grouped: bool = False
    constants: Callable[[Sequence[Any]], Iterable[Sequence[Any]]] | None = None

    by_score: ClassVar[bool] = False

    def compares(self, kind: str) -> bool:
        """Return whether it compares predictions of this kind, one for each example."""
        return kind in self.fits and not self.by_score and not self.grouped

    def statistics(self, targets: Sequence[Any], outputs: Sequence[Any]) -> Statistics:
        """Count the targets and predictions.

        Raises:
            ValueError: the targets are empty, or differ in number from the predictions.
        """
        if len(targets) != len(outputs):
            raise ValueError(f"there are {len(targets)} targets and {len(outputs)} predictions")
        if not len(targets):
            raise ValueError("there is no example to measure")
        if self.positive is None:
            return self.count(targets, outputs)
        return self.count(targets, outputs, positive=self.positive)

    def of_constants(self, targets: Sequence[Any]) -> dict[str, float]:
        """Return {`constant_NAME`: the best number that constant predictions reach}.

        They are a baseline that reads no input: for accuracy, the share of the most frequent class.
        {} for a metric without `constants`.
        """
        best: dict[str, float] = {}
        for constant in self.constants(targets) if self.constants else ():
            for name, value in self.statistics(targets, constant).numbers().items():
                best[f"constant_{name}"] = max(value, best.get(f"constant_{name}", value))
        return best

    def __call__(self, targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return the numbers by name."""
        return self.statistics(targets, predictions).numbers()


@dataclasses.dataclass(frozen=True)
class ScoreMetric(Metric):
    """A metric of scores, `metric(targets, scores) -> {name: value}`.

    A target is the index of the right class or choice, or a list of several right indices, or for
    `metrics.rankings` a mapping {index: grade}. The scores of an example are a list with a number
    for each class or choice, larger if more likely.
    """

    by_score: ClassVar[bool] = True

    def __call__(
        self, targets: Sequence[Any], scores: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """Return the numbers by name."""
        return self.statistics(targets, scores).numbers()
