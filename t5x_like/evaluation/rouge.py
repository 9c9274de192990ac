"""ROUGE: the overlap of a summary with its reference, in words and word order (Lin 2004).

F-measures of lower-case words of letters and digits, without stemming.
"""

import collections
import re
from collections.abc import Sequence

_WORD = re.compile(r"[a-z0-9]+")


def rouge_1(predicted: str, references: Sequence[str]) -> float:
    """F1 of words, for the reference where it is largest."""
    return max(_ngrams(predicted, one, size=1) for one in references)


def rouge_2(predicted: str, references: Sequence[str]) -> float:
    """F1 of pairs of words that follow each other."""
    return max(_ngrams(predicted, one, size=2) for one in references)


def rouge_l(predicted: str, references: Sequence[str]) -> float:
    """F1 of the longest common subsequence of words."""
    return max(_longest(_words(predicted), _words(one)) for one in references)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _ngrams(predicted: str, reference: str, *, size: int) -> float:
    counts = []
    for words in (_words(predicted), _words(reference)):
        parts = zip(*(words[first:] for first in range(size)), strict=False)
        counts.append(collections.Counter(parts))
    return _f1((counts[0] & counts[1]).total(), counts[0].total(), counts[1].total())


def _longest(predicted: Sequence[str], reference: Sequence[str]) -> float:
    row = [0] * (len(reference) + 1)  # of the words so far and the first n of the reference
    for word in predicted:
        before = row
        row = [0]
        for n, other in enumerate(reference):
            row.append(before[n] + 1 if word == other else max(before[n + 1], row[n]))
    return _f1(row[-1], len(predicted), len(reference))


def _f1(common: int, predicted: int, reference: int) -> float:
    return 2 * common / (predicted + reference) if common else 0.0
