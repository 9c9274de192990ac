"""Find the rows of tasks that share N words in a row with a text: Brown et al. 2020, appendix C.

Words are separated by whitespace and punctuation, and their case does not count: so the released
questions of GPT-3's word scrambles have the N of the paper's table C.1.
"""

import dataclasses
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Bool

from t5x_like.evaluation.measure import Row
from t5x_like.grain_pipeline.corpus import all_texts

SHORTEST, LONGEST = 8, 13  # words
_PERCENTILE = 5
_WORD = re.compile(r"[^\W_]+")

TaskName = TypeVar("TaskName", bound=Hashable)


@dataclasses.dataclass(frozen=True, eq=False)
class Overlaps:
    """The rows of a task that share `size` words in a row with a text.

    Attributes:
        size: the N of appendix C, see `size_of`.
        short: the number of rows with fewer words, which share nothing.
        overlapping: whether each of R rows shares some.
    """

    size: int
    short: int
    overlapping: Bool[np.ndarray, " R"]


def find(
    tasks: Mapping[TaskName, Sequence[Row]], documents: Iterable[str], *, shortest: int = SHORTEST
) -> dict[TaskName, Overlaps]:
    """Find the rows of tasks that share words with documents, in one pass over the documents.

    All strings of a row count, joined, and each different one once. The N-grams of the rows are in
    memory.

    Args:
        tasks: {task: its rows, one or more}.
        documents: the texts.
        shortest: see `size_of`.
    """
    asked = {task: list(map(_words_of, rows)) for task, rows in tasks.items()}
    sizes = {task: size_of(map(len, rows), shortest=shortest) for task, rows in asked.items()}
    known: dict[int, set[tuple[str, ...]]] = {size: set() for size in sizes.values()}
    for task, rows in asked.items():
        known[sizes[task]].update(gram for row in rows for gram in grams(row, sizes[task]))
    shared: dict[int, set[tuple[str, ...]]] = {size: set() for size in known}
    for document in documents:
        document_words = words(document)
        for size, of_size in known.items():
            shared[size] |= of_size.intersection(grams(document_words, size))
    return {
        task: Overlaps(
            size=sizes[task],
            short=sum(len(row) < sizes[task] for row in rows),
            overlapping=np.array(
                [not shared[sizes[task]].isdisjoint(grams(row, sizes[task])) for row in rows]
            ),
        )
        for task, rows in asked.items()
    }


def size_of(lengths: Iterable[int], *, shortest: int = SHORTEST) -> int:
    """Return N: the 5th percentile of the rows' lengths in words, from `shortest` to LONGEST.

    Args:
        lengths: the number of words of each row.
        shortest: 8 in the paper, and 2 or more for its generated word scrambles.
    """
    percentile = int(np.percentile(list(lengths), _PERCENTILE))
    return min(max(percentile, shortest), LONGEST)


def words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return _WORD.findall(text.lower())


def grams(text: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    """Return all sequences of `size` neighbouring words."""
    return zip(*(text[first:] for first in range(size)), strict=False)


def _words_of(row: Row) -> list[str]:
    return words(" ".join(dict.fromkeys(all_texts(row))))
