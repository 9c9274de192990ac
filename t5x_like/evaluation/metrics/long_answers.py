"""Metrics of Natural Questions' long answers, of which several annotators choose one or none."""

from collections.abc import Sequence

import numpy as np

from t5x_like.evaluation.metrics.metric import Statistics

NONE = "none"  # the text of an annotator or a model that finds no answer
AGREE = 2  # annotators who must have found an answer


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
    rows = np.array([_counts(*pair) for pair in zip(targets, predictions, strict=True)], float)
    return Statistics(rows, _reduce)


def _counts(chosen: Sequence[str], predicted: str) -> tuple[bool, bool, bool]:
    """Return whether the prediction is right, is not none, and the question has an answer."""
    spans, span_predicted = [span for span in chosen if span != NONE], predicted.strip()
    has_answer = len(spans) >= min(AGREE, len(chosen))
    return has_answer and span_predicted in spans, span_predicted != NONE, has_answer


def _reduce(rows: np.ndarray) -> dict[str, float]:
    right, predicted, answers = rows.sum(axis=0)
    precision = right / predicted if predicted else 0.0
    recall = right / answers if answers else 0.0
    total = precision + recall
    return {
        "long_answer_f1": 2 * precision * recall / total if total else 0.0,
        "long_answer_precision": precision,
        "long_answer_recall": recall,
    }
