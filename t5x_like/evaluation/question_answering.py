"""SQuAD's measures of extractive question answering: exact match and F1 of words.

Rajpurkar et al. 2016, section 6.1 (arXiv:1606.05250), and for questions without an answer Rajpurkar
et al. 2018, section 5 (arXiv:1806.03822).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from t5x_like.decoding.spans import Answer
from t5x_like.evaluation.intervals import Statistics, means
from t5x_like.evaluation.measure import Measured, Row, RowMeasure
from t5x_like.evaluation.metrics.texts import exact_match, f1
from t5x_like.inference.encoder_predictions import Answers
from t5x_like.inference.predictions import PREDICTIONS
from t5x_like.inference.predictor import Predictor


@dataclasses.dataclass(frozen=True)
class Squad(RowMeasure):
    """Exact match and F1 of predicted answers to `question` from `context`, against `answers`."""

    needs: ClassVar[tuple[str, ...]] = ("predictor", "rows")

    def directions(self) -> Mapping[str, bool]:
        """See `Measure`."""
        return dict.fromkeys(("exact_match", "f1", "best_f1"), False)

    def check(self, prediction: str) -> None:
        """See `Measure`."""
        if not issubclass(PREDICTIONS.get(prediction, object), Answers):
            raise ValueError(
                "the measure squad needs a model with the head question_answering; this one "
                f"predicts {prediction or 'nothing by itself'}"
            )

    def measure(self, predictor: Predictor, rows: Sequence[Row]) -> Measured:
        """Return the numbers of `rates`, and the predictions of `encoder_predictions.Answers`.

        Raises:
            ValueError: there are no rows, or they lack a field.
        """
        prediction = predictor.prediction
        assert isinstance(prediction, Answers)  # see `check`
        predicted = predictor(
            [{name: row[name] for name in ("question", "context")} for row in rows]
        )
        answers = [Answer(one["answer"], one["null_margin"]) for one in predicted]
        references = [row["answers"] for row in rows]
        threshold = prediction.threshold
        found = rates(answers, references, threshold=threshold)
        return found | _statistics(answers, references, threshold).estimates(), predicted


def rates(
    answers: Sequence[Answer],
    references: Sequence[Sequence[str]],
    *,
    threshold: float | None,
) -> dict[str, float]:
    """Return the metrics averaged over questions.

    Args:
        answers: the model's answer to each question.
        references: the right answers to each question, empty for a question without an answer.
        threshold: the null margin above which the model gives no answer; None if it always does.

    Returns:
        `exact_match` and `f1`, from 0 to 1; and if some questions have no answer, the best F1
        over all thresholds, `best_f1`, and its `best_threshold`, to be chosen on held-out data
        (Devlin et al. 2019, section 4.3).

    Raises:
        ValueError: there are no questions.
    """
    if not answers:
        raise ValueError("there is no question to answer")
    found = _statistics(answers, references, threshold).numbers()
    if not all(references):
        found |= _best(list(zip(answers, references, strict=True)))
    return found


def _statistics(
    answers: Sequence[Answer], references: Sequence[Sequence[str]], threshold: float | None
) -> Statistics:
    limit = float("inf") if threshold is None else threshold
    values = [
        [measure(answer.under(limit), right) for measure in (exact_match, f1)]
        for answer, right in zip(answers, references, strict=True)
    ]
    return Statistics(np.array(values), means("exact_match", "f1"))


def _best(pairs: Sequence[tuple[Answer, Sequence[str]]]) -> dict[str, float]:
    """Find the threshold with the largest F1: one of the margins, or below all margins."""
    ordered = sorted(pairs, key=lambda pair: pair[0].null_margin)
    total = sum(f1("", right) for _, right in ordered)  # no answer to any question
    best, threshold = total, ordered[0][0].null_margin - 1
    for number, (answer, right) in enumerate(ordered):
        total += f1(answer.text, right) - f1("", right)
        last = number + 1 == len(ordered)
        if total > best and (last or ordered[number + 1][0].null_margin > answer.null_margin):
            best, threshold = total, answer.null_margin
    return {"best_f1": best / len(ordered), "best_threshold": threshold}
