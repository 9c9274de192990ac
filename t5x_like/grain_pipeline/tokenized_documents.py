"""Tokenized documents in a folder, which are read in place of cleaning and tokenizing the text.

A folder has TASK/SPLIT-00000-of-00003.array_record files, a record for each row of the corpus. A
record has the tokens of the pieces of a cleaned document, before an objective joins them. All that
is random comes after it, so that one folder serves every objective, length, seed and order.
"""

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like import paths
from t5x_like.batches.tokenized_folder import TokenizedFolder
from t5x_like.grain_pipeline.corpus import Split
from t5x_like.grain_pipeline.document_cleaning import clean
from t5x_like.grain_pipeline.records import Records
from t5x_like.vocabularies import Vocabulary

FORMAT = 1  # of the records and of the rules of cleaning: raise it when either changes

Pieces = Sequence[Sequence[int]]


def tokenize(text: str | None, vocabulary: Vocabulary) -> Pieces:
    """The tokens of the pieces of a document; none for a row without text."""
    return [] if text is None else [vocabulary.encode(piece) for piece in clean(text)]


def pack(pieces: Pieces) -> bytes:
    """A record: the number of pieces, their lengths and their tokens, int32 and little-endian."""
    numbers = [len(pieces), *map(len, pieces), *itertools.chain.from_iterable(pieces)]
    return np.array(numbers, "<i4").tobytes()


def unpack(record: bytes) -> Pieces:
    """The tokens of the pieces of a record."""
    numbers = np.frombuffer(record, "<i4").tolist()
    first = numbers[0] + 1  # the place of the first token
    ends = itertools.accumulate(numbers[1:first], initial=first)
    return [numbers[begin:end] for begin, end in itertools.pairwise(ends)]


def identity(vocabulary: Vocabulary, splits: Mapping[str, Split]) -> dict[str, Any]:
    """All that decides the records, as JSON has it: of equal ones, the tokens are equal.

    Args:
        vocabulary: of the tokens.
        splits: by "TASK/SPLIT".
    """
    return {
        "format": FORMAT,
        "vocabulary": vocabulary.digest,
        "splits": {key: _documents(split) for key, split in splits.items()},
    }


def pieces(
    folder: TokenizedFolder, key: str, split: Split, vocabulary: Vocabulary
) -> Callable[[int], Pieces]:
    """The function from the number of a row to the tokens of its pieces.

    Args:
        folder: of tokenized documents.
        key: "TASK/SPLIT".
        split: the documents that the folder must have been made of.
        vocabulary: of the tokens.

    Raises:
        ValueError: as `TokenizedFolder.files`.
    """
    return _Records(folder.files(key, identity(vocabulary, {key: split}))).pieces


class _Records:
    """The records of several files, one file after the other."""

    def __init__(self, files: Sequence[str]):
        self._files = [Records(file) for file in files]
        self._ends = [*itertools.accumulate(map(len, self._files))]

    def pieces(self, number: int) -> Pieces:
        """The tokens of the pieces of a row."""
        index = bisect.bisect_right(self._ends, number)
        return unpack(self._files[index][number - self._ends[index] + len(self._files[index])])


def _documents(split: Split) -> dict[str, Any]:
    """What decides the documents of a split; the files may lie in another folder."""
    found = map(paths.fingerprint, split.rows.paths)
    return {
        "rows": len(split.rows),
        "text": split.rows.text,
        "held_out": split.held_out,
        "validation": split.validation,
        "files": [one and [one[0], one[2]] for one in found],  # without the time
    }
