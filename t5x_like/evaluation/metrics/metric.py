"""The contract of metrics: functions of targets and of what a model makes of their inputs."""

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, ClassVar

from t5x_like.evaluation.intervals import Statistics

CLASS, NUMBER, TAGS, TEXT, CHOICE = "class", "number", "tags", "text", "choice"
LABELS = "labels"


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric after the contract of seqio, `metric(targets, predictions) -> {name: value}`.

    It can stand in the `metric_fns` of a `seqio.Task`.

    Attributes:
        fits: the kinds of predictions that it compares: CLASS, a name or a number of a class;
            NUMBER; TAGS, a list with a tag for each word; TEXT, or a list of right texts as the
            target; CHOICE, the number of one of several choices; LABELS, a mapping as the
            target, with the labels of a text.
        count: (targets, predictions) -> `Statistics`; with `positive=` where there is one.
        smaller_is_better: as for an error; of accuracies larger values are better.
        positive: the positive class of a binary metric; None for a metric without one.
        numbers: the names of its numbers, "/*" for those of classes or types; empty for the name
            of the metric alone.
        grouped: targets are mappings with `group` and `value`, see `metrics.groups`.
        constants: targets -> for each constant that may be the best one, its predictions for all
            of them; None for a metric that needs no such number beside it.
        by_score: compares scores in place of predictions, see `ScoreMetric`.
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
        """Whether it compares predictions of this kind, one for each example."""
        return kind in self.fits and not self.by_score and not self.grouped

    def statistics(self, targets: Sequence[Any], outputs: Sequence[Any]) -> Statistics:
        """What the metric counts.

        Raises:
            ValueError: there are no examples, or not as many predictions as targets.
        """
        if len(targets) != len(outputs):
            raise ValueError(f"there are {len(targets)} targets and {len(outputs)} predictions")
        if not len(targets):
            raise ValueError("there is no example to measure")
        if self.positive is None:
            return self.count(targets, outputs)
        return self.count(targets, outputs, positive=self.positive)

    def of_constants(self, targets: Sequence[Any]) -> dict[str, float]:
        """The best numbers of predictions that are all the same, as `constant_NAME`.

        They are what the metric gives without reading any input: of accuracy the share of the most
        frequent class. {} for a metric without `constants`.
        """
        best: dict[str, float] = {}
        for constant in self.constants(targets) if self.constants else ():
            for name, value in self.statistics(targets, constant).numbers().items():
                best[f"constant_{name}"] = max(value, best.get(f"constant_{name}", value))
        return best

    def __call__(self, targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
        """The numbers by name."""
        return self.statistics(targets, predictions).numbers()


@dataclasses.dataclass(frozen=True)
class ScoreMetric(Metric):
    """A metric of scores, `metric(targets, scores) -> {name: value}`.

    A target is the number of the right class or choice, from 0, or a list of several right ones;
    the scores of an example are a list, one for each class or choice, larger for likelier ones.
    """

    by_score: ClassVar[bool] = True

    def __call__(
        self, targets: Sequence[Any], scores: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """The numbers by name."""
        return self.statistics(targets, scores).numbers()
