"""Metrics of answers with the sentences that support them, as in hotpot_evaluate_v1.py."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like.evaluation.metrics.metric import Statistics, means
from t5x_like.evaluation.metrics.texts import normalize

NAMES = tuple(f"{part}{name}" for part in ("", "fact_", "joint_") for name in ("exact_match", "f1"))
_CLOSED = (["yes"], ["no"], ["noanswer"])  # answers that have nothing in common with others

Evidence = Mapping[str, Any]  # `answer`, a text, and `facts`, pairs of a title and a number
Overlap = tuple[float, float, float]  # exact match, precision and recall


def supporting_facts(targets: Sequence[Evidence], predictions: Sequence[Evidence]) -> Statistics:
    """Exact match and F1 of answers, of facts, and of both (Yang et al. 2018, section 5.2).

    The joint exact match, precision and recall of a question are the products of the answer's and
    the facts', and the joint F1 is computed from the last two.

    Returns:
        Statistics of `NAMES`, means over questions.
    """
    rows = [_numbers(*pair) for pair in zip(targets, predictions, strict=True)]
    return Statistics(np.array(rows, float), means(*NAMES))


def _numbers(target: Evidence, predicted: Evidence) -> list[float]:
    answers = _of_answers(normalize(predicted["answer"]), normalize(target["answer"]))
    facts = _of_facts(*({tuple(fact) for fact in row["facts"]} for row in (predicted, target)))
    joint = [of_answer * of_facts for of_answer, of_facts in zip(answers, facts, strict=True)]
    return [
        number
        for exact, precision, recall in (answers, facts, joint)
        for number in (exact, _f1(precision, recall))
    ]


def _of_answers(predicted: list[str], right: list[str]) -> Overlap:
    exact = float(predicted == right)
    if not exact and (predicted in _CLOSED or right in _CLOSED):
        return 0.0, 0.0, 0.0
    common = (collections.Counter(predicted) & collections.Counter(right)).total()
    return exact, *_shares(common, len(predicted), len(right))


def _of_facts(predicted: set[Any], right: set[Any]) -> Overlap:
    common = len(predicted & right)
    return float(predicted == right), *_shares(common, len(predicted), len(right))


def _shares(common: int, predicted: int, right: int) -> tuple[float, float]:
    return (common / predicted if predicted else 0.0), (common / right if right else 0.0)


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0
