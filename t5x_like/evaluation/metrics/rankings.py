"""Metrics of rankings: choices ordered by their scores, of which one or several are relevant.

A target is the index of the relevant choice, a list of several, or a mapping {index: grade} whose
missing choices have the grade 0.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like.evaluation.metrics.metric import Statistics, means


def mean_reciprocal_rank(targets: Sequence[Any], scores: Sequence[Sequence[float]]) -> Statistics:
    """The mean of 1 / rank of the right choice, or of the best of several right choices.

    Choices with equal scores share the mean of their ranks, so that equal scores gain nothing.

    Raises:
        ValueError: a right choice is not one of the choices.
    """

    def reciprocal(target: Any, choice_scores: Sequence[float]) -> float:
        values = np.asarray(choice_scores, float)
        indices = list(target) if isinstance(target, list | tuple) else [target]
        right = values[_among(indices, len(values))].max()
        return 1 / ((values > right).sum() + (1 + (values == right).sum()) / 2)

    ranks = [reciprocal(*pair) for pair in zip(targets, scores, strict=True)]
    return Statistics(np.array(ranks, float)[:, None], means("mean_reciprocal_rank"))


def ndcg(targets: Sequence[Any], scores: Sequence[Sequence[float]]) -> Statistics:
    """The mean normalized discounted cumulative gain of all choices, as in scikit-learn.

    The gain of a choice is its grade, divided by log2(1 + rank), and the sum is divided by the sum
    of the best order (Jarvelin and Kekalainen 2002; Burges et al. 2005 have the same discount, but
    gains of 2^grade - 1). Choices with equal scores share the mean of their gains (McSherry and
    Najork 2008). 0 if no choice is relevant.

    Raises:
        ValueError: a grade is below 0, or a relevant choice is not one of the choices.
    """

    def normalized(target: Any, choice_scores: Sequence[float]) -> float:
        grades = _grades(target, len(choice_scores))
        discounts = 1 / np.log2(np.arange(len(choice_scores)) + 2)
        _, group = np.unique(-np.asarray(choice_scores, float), return_inverse=True)
        shared = np.bincount(group, grades) / np.bincount(group)
        best = np.sort(grades)[::-1] @ discounts
        return float(shared[np.sort(group)] @ discounts / best) if best else 0.0

    values = [normalized(*pair) for pair in zip(targets, scores, strict=True)]
    return Statistics(np.array(values, float)[:, None], means("ndcg"))


def err(targets: Sequence[Any], scores: Sequence[Sequence[float]]) -> Statistics:
    """The mean expected reciprocal rank of all choices (Chapelle et al. 2009).

    A choice of grade g satisfies with probability R(g) = (2^g - 1) / 2^G, where G is the highest
    grade of all targets, and the reader stops at the first that does. Of choices with equal scores
    the less relevant are first, so that equal scores gain nothing.

    Raises:
        ValueError: a grade is below 0, or a relevant choice is not one of the choices.
    """
    pairs = zip(targets, scores, strict=True)
    graded = [
        (_grades(target, len(choice_scores)), np.asarray(choice_scores, float))
        for target, choice_scores in pairs
    ]
    highest = max((grades.max(initial=0) for grades, _ in graded), default=0)

    def expected(grades: np.ndarray, choice_scores: np.ndarray) -> float:
        satisfied = (2 ** grades[np.lexsort((grades, -choice_scores))] - 1) / 2**highest
        reached = np.cumprod(np.concatenate([[1.0], 1 - satisfied[:-1]]))
        return float((reached * satisfied / (np.arange(len(choice_scores)) + 1)).sum())

    values = [expected(*pair) for pair in graded]
    return Statistics(np.array(values, float)[:, None], means("err"))


def _grades(target: Any, size: int) -> np.ndarray:
    """Return the grade of each of `size` choices."""
    if not isinstance(target, Mapping):
        target = dict.fromkeys(target if isinstance(target, list | tuple) else [target], 1)
    if any(grade < 0 for grade in target.values()):
        raise ValueError(f"a grade of {dict(target)!r:.80} is below 0")
    grades = np.zeros(size)
    grades[_among(list(target), size)] = list(target.values())
    return grades


def _among(indices: list[int], size: int) -> list[int]:
    """Return the indices, after a check that each is one of `size` choices."""
    if outside := [index for index in indices if not 0 <= index < size]:
        raise ValueError(f"the right choice {outside[0]} is not one of the choices 0 to {size - 1}")
    return indices
