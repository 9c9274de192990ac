"""Metrics of groups of examples: MultiRC's answers to a question, ReCoRD's copies of a query.

Targets, and optionally predictions, are mappings with `group`, the key of the group, and `value`,
as in the metrics that T5 defined for seqio. Groups are resampled as a whole. The two groups of
`referent` are the labels of WSC.
"""

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like.evaluation.metrics.metric import Statistics, means
from t5x_like.evaluation.metrics.texts import exact_match, f1, references

_DETERMINER = re.compile(
    "an?|each|every|few|many|much|some|the|this|that|these|those|which|whose|my|your|his|her|our"
    "|their"
)


def multirc(
    targets: Sequence[Mapping[str, Any]], predictions: Sequence[Any], *, positive: Hashable
) -> Statistics:
    """MultiRC's metrics (Khashabi et al. 2018, section 3.3): a group is a question.

    Returns:
        Statistics of `multirc_exact_match`, the share of questions with all answers judged right;
        and of `multirc_f1a`, the F1 of the positive class over the answers of all questions. A
        prediction of None counts as the wrong class.
    """
    counts: dict[Any, list[int]] = {}
    for target, prediction in zip(targets, predictions, strict=True):
        right = target["value"] == positive
        value = _value(prediction)
        judged = (not right) if value is None else value == positive
        question = counts.setdefault(target["group"], [1, 0, 0, 0])
        question[0] &= right == judged
        question[1] += right and judged
        question[2] += judged
        question[3] += right

    def reduce(rows: np.ndarray) -> dict[str, float]:
        common, judged, right = rows[:, 1:].sum(axis=0)
        f1a = 2 * common / (judged + right) if judged + right else 0.0
        return {"multirc_exact_match": rows[:, 0].mean(), "multirc_f1a": f1a}

    return Statistics(np.array(list(counts.values()), float), reduce)


def record(targets: Sequence[Mapping[str, Any]], predictions: Sequence[Any]) -> Statistics:
    """ReCoRD's metrics (Zhang et al. 2018, section 5): a group is a query with its right entities.

    Only the first example of a query counts, since all examples of a query, one for each right
    entity, have the same inputs.

    Returns:
        Statistics of `record_exact_match` and `record_f1`, each the largest over the answers.
    """
    first: dict[Any, tuple[str, list[str]]] = {}
    for target, prediction in zip(targets, predictions, strict=True):
        first.setdefault(target["group"], (_value(prediction), references(target["value"])))
    rows = [[exact_match(*pair), f1(*pair)] for pair in first.values()]
    return Statistics(np.array(rows, float), means("record_exact_match", "record_f1"))


def referent(targets: Sequence[Mapping[str, Any]], predictions: Sequence[Any]) -> Statistics:
    """Accuracy of WSC as text: a text should be the noun if and only if the pronoun refers to it.

    A target's `value` is the noun, its `group` "True" if the pronoun refers to it. As in T5's
    released code, texts are the same if the words of one, without case and determiners, are a
    subset of the other's, and both or neither have an apostrophe.

    Returns:
        Statistics of `referent`, the share of examples that are right.
    """
    rows = []
    for target, prediction in zip(targets, predictions, strict=True):
        nouns = references(target["value"])
        is_noun = any(same_noun(_value(prediction), noun) for noun in nouns)
        rows.append([float(is_noun == (target["group"] == "True"))])
    return Statistics(np.array(rows), means("referent"))


def same_noun(text: str, noun: str) -> bool:
    """Return whether a text is a noun, ignoring case, determiners and missing words."""
    words, right = (
        {word for word in phrase.strip().lower().split(" ") if not _DETERMINER.fullmatch(word)}
        for phrase in (text, noun)
    )
    if any("'" in word for word in words) != any("'" in word for word in right):
        return False  # "Ann" is not "Ann's hat"
    # A text of only determiners has no words, which T5's code treats as one empty word.
    words, right = words or {""}, right or {""}
    return words <= right or right <= words


def _value(prediction: Any) -> Any:
    return prediction["value"] if isinstance(prediction, Mapping) else prediction
