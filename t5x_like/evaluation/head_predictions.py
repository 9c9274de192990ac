"""Metrics of a head's predictions for labelled rows: classes, numbers, tags, choices."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from t5x_like.evaluation.measure import Measured, Row, RowMeasure, check_group, in_groups
from t5x_like.evaluation.metrics import METRICS, Metric, directions
from t5x_like.inference.predictions import PREDICTIONS
from t5x_like.inference.predictor import Prediction, Predictor
from t5x_like.names import choose

# {kind of prediction: default metrics}
_DEFAULTS: dict[str, tuple[str, ...]] = {
    "class": ("accuracy", "matthews", "f1_macro"),
    "number": ("pearson", "spearman"),
    "tags": ("tag_accuracy", "entity_f1"),
    "choice": ("accuracy",),
}

_PLURALS = {"class": "classes", "number": "numbers", "tags": "tags", "choice": "choices"}


@dataclasses.dataclass(frozen=True)
class HeadPredictions(RowMeasure):
    """Metrics of the predictions of a head for labelled text, against the labels.

    Attributes:
        metrics: names in `evaluation.metrics` that fit the head; if empty, the defaults of its kind
            in `_DEFAULTS`.
        positive: the label of the positive of two classes; "" for the second class.
        group: for `multirc`, the field of a row with the key of its group.
    """

    metrics: Sequence[str] = ()
    positive: str = ""
    group: str = ""

    needs: ClassVar[tuple[str, ...]] = ("predictor", "rows")

    def directions(self) -> Mapping[str, bool]:
        """See `Measure`."""
        return directions(self.metrics or {name for own in _DEFAULTS.values() for name in own})

    def check(self, prediction: str) -> None:
        """See `Measure`; also raise if a metric does not fit the head."""
        kind = PREDICTIONS[prediction].kind if prediction in PREDICTIONS else ""
        if kind not in _DEFAULTS:
            raise ValueError(
                "this measure needs a head that predicts classes, numbers, tags or choices; this "
                f"model predicts {prediction or 'nothing by itself'}"
            )
        if isinstance(self.metrics, str):
            raise ValueError(f"metrics={self.metrics!r} must be a list of names of metrics")
        fitting = {name: one for name, one in METRICS.items() if kind in one.fits}
        for name in self.metrics:
            choose("metric", name, METRICS)
            choose(f"metric of a model that predicts {_PLURALS[kind]}", name, fitting)
            check_group(name, self.group)

    def measure(self, predictor: Predictor, rows: Sequence[Row]) -> Measured:
        """Return the numbers of all metrics, as `Estimate`s.

        Raises:
            ValueError: a metric does not fit the head, there are no rows, or they lack a field.
        """
        prediction = predictor.prediction
        if prediction.kind not in _DEFAULTS:
            raise ValueError(
                "the folder of the model has a problem_type with several answers for a text, and "
                "the metrics of labelled rows compare one"
            )
        names = self.metrics or _DEFAULTS[prediction.kind]
        metrics = [self._metric(name, prediction) for name in names]
        pairs = [prediction.example(row) for row in rows]
        predicted = predictor([item for item, _ in pairs])
        labels = [label for _, label in pairs]
        found: dict[str, float] = {}
        for metric in metrics:
            targets, outputs = self._read(metric, prediction, labels, predicted)
            if metric.grouped:
                targets = in_groups(rows, targets, group=self.group)
            found |= metric.statistics(targets, outputs).estimates()
            found |= metric.of_constants(targets)
        return found | {"examples": len(rows)}, predicted

    def _metric(self, name: str, prediction: Prediction) -> Metric:
        metric, labels = METRICS[name], prediction.labels
        if metric.positive is None:
            return metric
        if self.positive:
            positive = choose("positive", self.positive, {one: one for one in labels})
        elif len(labels) != 2:
            raise ValueError(
                f"positive is not set: the metric {name} needs the positive class of two, and the "
                f"data has {len(labels)}: {', '.join(labels)}"
            )
        else:
            positive = labels[1]
        return dataclasses.replace(metric, positive=positive)

    def _read(
        self,
        metric: Metric,
        prediction: Prediction,
        labels: Sequence[Any],
        predicted: Sequence[dict[str, Any]],
    ) -> tuple[list[Any], list[Any]]:
        """Return targets, and predictions or scores, in the form that a metric compares."""
        if not metric.by_score:
            targets = [prediction.target(label) for label in labels]
            return targets, [prediction.value(one) for one in predicted]
        scores = [prediction.scores(one) for one in predicted]
        if self.positive and prediction.labels and self.positive == prediction.labels[0]:
            return [1 - label for label in labels], [own[::-1] for own in scores]
        return list(labels), scores
