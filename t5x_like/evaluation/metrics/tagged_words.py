"""Metrics of tagged words: accuracy of tags, and F1 of entities as conlleval counts them.

Entities are spans of words with a type (Tjong Kim Sang and De Meulder 2003, section 2.3). Tags are
O, or a letter and a type: B-PER begins an entity, I-PER continues it, and in the scheme IOBES E-PER
ends it and S-PER is an entity of one word. Entities begin and end by the rules of conlleval, the
script of the shared task, for IOB1, IOB2 and IOBES alike. They are implemented here because
seqeval, the library with the same rules, has no wheel, and its sdist does not build with current
setuptools.
"""

import collections
import operator
from collections.abc import Sequence

import numpy as np

from t5x_like.evaluation.metrics.metric import Statistics

TagSequence = Sequence[str | None]  # one per word; None without a prediction


def tag_accuracy(targets: Sequence[TagSequence], predictions: Sequence[TagSequence]) -> Statistics:
    """The share of words with the right tag, over all sentences."""
    rows = [
        [sum(map(operator.eq, target, predicted)), len(target)]
        for target, predicted in zip(targets, predictions, strict=True)
    ]

    def reduce(rows: np.ndarray) -> dict[str, float]:
        right, words = rows.sum(axis=0)
        return {"tag_accuracy": right / words}

    return Statistics(np.array(rows, float), reduce)


def constants(targets: Sequence[TagSequence]) -> list[list[TagSequence]]:
    """Return predictions of the most frequent tag for every word."""
    counted = collections.Counter(tag for target in targets for tag in target)
    return [[[tag] * len(target) for target in targets] for tag, _ in counted.most_common(1)]


def entity_f1(targets: Sequence[TagSequence], predictions: Sequence[TagSequence]) -> Statistics:
    """Precision, recall and F1 of entities over all sentences, and F1 of each type.

    An entity is right if an entity of the target has the same first word, last word and type. F1 is
    0 without any entity, as in conlleval.
    """
    pairs = [
        (set(entities(target)), set(entities(predicted)))
        for target, predicted in zip(targets, predictions, strict=True)
    ]
    types = sorted({kind for pair in pairs for entity_set in pair for _, _, kind in entity_set})
    rows = np.zeros([len(pairs), len(types), 3])
    for row, (right, predicted) in zip(rows, pairs, strict=True):
        for column, group in enumerate((right & predicted, predicted, right)):
            for _, _, kind in group:
                row[types.index(kind), column] += 1

    def reduce(rows: np.ndarray) -> dict[str, float]:
        by_type = rows.reshape(len(rows), len(types), 3).sum(axis=0)
        common, predicted, right = by_type.sum(axis=0)
        total = {
            "entity_precision": _ratio(common, predicted),
            "entity_recall": _ratio(common, right),
            "entity_f1": _ratio(2 * common, predicted + right),
        }
        return total | {
            f"entity_f1/{kind}": _ratio(2 * counts[0], counts[1] + counts[2])
            for kind, counts in zip(types, by_type, strict=True)
        }

    return Statistics(rows.reshape(len(pairs), -1), reduce)


def entities(tags: TagSequence) -> list[tuple[int, int, str]]:
    """Return the entities of a sentence: (first word, last word, type)."""
    spans, first = [], 0
    before, kind_before = "O", ""
    for number, tag in enumerate([*_without_none(tags), "O"]):
        letter, _, kind = tag.partition("-")
        other = kind != kind_before
        if before != "O" and (other or before in "ES" or letter in "BSO"):
            spans.append((first, number - 1, kind_before))
        if letter != "O" and (other or before in "OES" or letter in "BS"):
            first = number
        before, kind_before = letter, kind
    return spans


def _without_none(tags: TagSequence) -> list[str]:
    return ["O" if tag is None else tag for tag in tags]


def _ratio(part: float, total: float) -> float:
    return float(part / total) if total else 0.0
