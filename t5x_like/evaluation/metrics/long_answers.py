"""Metrics of Natural Questions' answers, of which several annotators choose one or none."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from t5x_like.evaluation.metrics.metric import Statistics

NONE = "none"  # the text of an annotator or a model that finds no answer
AGREE = 2  # annotators who must have found an answer


NAMES = tuple(
    f"{side}_answer_{name}" for side in ("long", "short") for name in ("f1", "precision", "recall")
)


def long_answer(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> Statistics:
    """F1, precision and recall as in the released nq_eval.py, without its search for a threshold.

    A question has an answer if at least two annotators chose a candidate; a prediction is right if
    the question has an answer and some annotator chose the same candidate. Precision is the share
    of right predictions among all that are not "none", recall among the questions with an answer
    (Kwiatkowski et al. 2019, section 5). If only one annotator was asked, as in the training data,
    one annotator is enough.

    Args:
        targets: the candidates that the annotators of each question chose, or "none".
        predictions: a candidate or "none" for each question; white space around it is ignored.

    Returns:
        Statistics of `long_answer_f1`, `long_answer_precision` and `long_answer_recall`, 0 where a
        denominator is.
    """
    return _answers(targets, predictions, name="long_answer")


def both_answers(
    targets: Sequence[Mapping[str, Sequence[str]]], predictions: Sequence[Mapping[str, str]]
) -> Statistics:
    """F1, precision and recall of long answers and of short answers, each as in `long_answer`.

    The short answer of an annotator is "yes", "no", or a text that stands for a set of spans.

    Args:
        targets: the answers that the annotators of each question gave, `long` and `short`.
        predictions: both answers to each question.

    Returns:
        Statistics of the numbers of `long_answer`, and of `short_answer_f1` and so on.
    """
    both = [
        _answers(
            [target[side] for target in targets],
            [predicted[side] for predicted in predictions],
            name=f"{side}_answer",
        )
        for side in ("long", "short")
    ]

    def reduce(rows: np.ndarray) -> dict[str, float]:
        first, second = np.split(rows, 2, axis=1)
        return {**both[0].reduce(first), **both[1].reduce(second)}

    return Statistics(np.concatenate([statistics.rows for statistics in both], axis=1), reduce)


def _answers(
    targets: Sequence[Sequence[str]], predictions: Sequence[str], *, name: str
) -> Statistics:
    rows = np.array([_counts(*pair) for pair in zip(targets, predictions, strict=True)], float)
    return Statistics(rows, functools.partial(_reduce, name=name))


def _counts(chosen: Sequence[str], predicted: str) -> tuple[bool, bool, bool]:
    """Return whether the prediction is right, is not none, and the question has an answer."""
    spans, span_predicted = [span for span in chosen if span != NONE], predicted.strip()
    has_answer = len(spans) >= min(AGREE, len(chosen))
    return has_answer and span_predicted in spans, span_predicted != NONE, has_answer


def _reduce(rows: np.ndarray, *, name: str) -> dict[str, float]:
    right, predicted, answers = rows.sum(axis=0)
    precision = right / predicted if predicted else 0.0
    recall = right / answers if answers else 0.0
    total = precision + recall
    return {
        f"{name}_f1": 2 * precision * recall / total if total else 0.0,
        f"{name}_precision": precision,
        f"{name}_recall": recall,
    }
