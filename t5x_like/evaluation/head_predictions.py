"""Metrics of a head's predictions for labelled rows: classes, numbers, tags, choices, answers."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from t5x_like.decoding.spans import Answer
from t5x_like.evaluation.measure import Measured, Row, RowMeasure, check_group, in_groups
from t5x_like.evaluation.metrics import METRICS, Metric, directions
from t5x_like.evaluation.metrics.metric import Statistics, means
from t5x_like.evaluation.metrics.texts import exact_match, f1, normalize
from t5x_like.inference.encoder_predictions import AnswerPrediction
from t5x_like.inference.predictions import PREDICTIONS
from t5x_like.inference.predictor import Prediction, Predictor
from t5x_like.names import choose, hint

# {kind of prediction: default metrics}
_DEFAULTS: dict[str, tuple[str, ...]] = {
    "class": ("accuracy", "matthews", "f1_macro"),
    "number": ("pearson", "spearman"),
    "tags": ("tag_accuracy", "entity_f1"),
    "choice": ("accuracy",),
    "facts": ("supporting_facts",),
    "spans": ("long_and_short_answers",),
}

_PLURALS = {
    "class": "classes",
    "number": "numbers",
    "tags": "tags",
    "choice": "choices",
    "facts": "answers with facts",
    "spans": "long and short answers",
}


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
        return directions(self.metrics or {name for names in _DEFAULTS.values() for name in names})

    def check(self, prediction: str) -> None:
        """See `Measure`; also raise if a metric does not fit the head."""
        kind = PREDICTIONS[prediction].kind if prediction in PREDICTIONS else ""
        if kind not in _DEFAULTS:
            raise ValueError(
                "this measure needs a head that predicts classes, numbers, tags, choices, answers "
                "with facts, or long and short answers; this model predicts "
                f"{prediction or 'nothing by itself'}"
            )
        if isinstance(self.metrics, str):
            raise ValueError(f"metrics={self.metrics!r} must be a list of names of metrics")
        fitting = {name: metric for name, metric in METRICS.items() if kind in metric.fits}
        for name in self.metrics:
            choose("metric", name, METRICS)
            if name not in fitting:
                raise ValueError(
                    f"the metric {name!r} does not measure {_PLURALS[kind]}.{hint(name, fitting)}"
                )
            check_group(name, self.group)

    def measure(self, predictor: Predictor, rows: Sequence[Row]) -> Measured:
        """Return an `Estimate` of each number of all metrics.

        Raises:
            ValueError: a metric does not fit the head, `rows` is empty, or a row lacks a field.
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
        results: dict[str, float] = {}
        for metric in metrics:
            targets, outputs = self._read(metric, prediction, labels, predicted)
            if metric.grouped:
                targets = in_groups(rows, targets, group=self.group)
            results |= metric.statistics(targets, outputs).estimates()
            results |= metric.of_constants(targets)
        return results | {"examples": len(rows)}, predicted

    def _metric(self, name: str, prediction: Prediction) -> Metric:
        metric, labels = METRICS[name], prediction.labels
        if metric.positive is None:
            return metric
        if self.positive:
            positive = choose("positive", self.positive, {label: label for label in labels})
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
            return targets, [prediction.value(output) for output in predicted]
        scores = [prediction.scores(output) for output in predicted]
        if self.positive and prediction.labels and self.positive == prediction.labels[0]:
            return [1 - label for label in labels], [row_scores[::-1] for row_scores in scores]
        return list(labels), scores


@dataclasses.dataclass(frozen=True)
class Squad(RowMeasure):
    """Exact match and F1 of predicted answers to `question` from `context`, against `answers`."""

    needs: ClassVar[tuple[str, ...]] = ("predictor", "rows")

    def directions(self) -> Mapping[str, bool]:
        """See `Measure`."""
        return dict.fromkeys(("exact_match", "f1", "best_f1"), False)

    def check(self, prediction: str) -> None:
        """See `Measure`."""
        if not issubclass(PREDICTIONS.get(prediction, object), AnswerPrediction):
            raise ValueError(
                "the measure squad needs a model with the head question_answering; this one "
                f"predicts {prediction or 'nothing by itself'}"
            )

    def measure(self, predictor: Predictor, rows: Sequence[Row]) -> Measured:
        """Return the numbers of `rates`, and the predictions of an `AnswerPrediction`.

        Raises:
            ValueError: `rows` is empty, or a row lacks a field.
        """
        prediction = predictor.prediction
        assert isinstance(prediction, AnswerPrediction)  # see `check`
        predicted = predictor(
            [{name: row[name] for name in ("question", "context")} for row in rows]
        )
        answers = [Answer(output["answer"], output["null_margin"]) for output in predicted]
        references = [row["answers"] for row in rows]
        threshold = prediction.threshold
        results = rates(answers, references, threshold=threshold)
        return results | _statistics(answers, references, threshold).estimates(), predicted


def rates(
    answers: Sequence[Answer],
    references: Sequence[Sequence[str]],
    *,
    threshold: float | None,
) -> dict[str, float]:
    """Return the metrics averaged over questions, as evaluate-v2.0.py of SQuAD 2.0.

    Args:
        answers: the model's answer to each question.
        references: the right answers to each question, empty for a question without an answer.
        threshold: the null margin above which the model gives no answer; None if it always does.

    Returns:
        `exact_match` and `f1`, from 0 to 1; and if some questions have no answer, the best F1
        over all thresholds, `best_f1`, and its `best_threshold`, to be chosen on held-out data
        (Devlin et al. 2019, section 4.3).

    Raises:
        ValueError: `answers` is empty.
    """
    if not answers:
        raise ValueError("there is no question to answer")
    results = _statistics(answers, references, threshold).numbers()
    if not all(references):
        results |= _best(list(zip(answers, references, strict=True)))
    return results


def _statistics(
    answers: Sequence[Answer], references: Sequence[Sequence[str]], threshold: float | None
) -> Statistics:
    limit = float("inf") if threshold is None else threshold
    values = [
        [measure(answer.under(limit), right) for measure in (exact_match, f1)]
        for answer, right in zip(answers, map(_with_words, references), strict=True)
    ]
    return Statistics(np.array(values), means("exact_match", "f1"))


def _with_words(references: Sequence[str]) -> list[str]:
    """Leave out the answers without a word, such as "|", which SQuAD 2.0 has beside others."""
    return [answer for answer in references if normalize(answer)]


def _best(pairs: Sequence[tuple[Answer, Sequence[str]]]) -> dict[str, float]:
    """Find the threshold with the largest F1: one of the margins, or below all margins."""
    pairs = [(answer, _with_words(references)) for answer, references in pairs]
    ordered = sorted(pairs, key=lambda pair: pair[0].null_margin)
    total = sum(f1("", right) for _, right in ordered)  # no answer to any question
    best, threshold = total, ordered[0][0].null_margin - 1
    for number, (answer, right) in enumerate(ordered):
        total += f1(answer.text, right) - f1("", right)
        last = number + 1 == len(ordered)
        if total > best and (last or ordered[number + 1][0].null_margin > answer.null_margin):
            best, threshold = total, answer.null_margin
    return {"best_f1": best / len(ordered), "best_threshold": threshold}
