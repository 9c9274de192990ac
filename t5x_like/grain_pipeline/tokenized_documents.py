"""Tokenized documents in a folder, which are read instead of cleaning and tokenizing the text.

A folder has TASK/SPLIT-00000-of-00003.array_record files, with a record for each row of the corpus.
A record has the tokens of the pieces of a cleaned document, before an objective joins them.
Everything random happens later, so one folder serves all objectives, lengths, seeds and orders.
"""

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like import paths
from t5x_like.batches.document_cleaning import clean
from t5x_like.batches.tokenized_folder import TokenizedFolder
from t5x_like.grain_pipeline.corpus import Split
from t5x_like.grain_pipeline.rows_of_files import Files, Records
from t5x_like.vocabularies import Vocabulary

FORMAT = 1  # version of the records and of the rules of cleaning: raise it if either changes

TokenPieces = Sequence[Sequence[int]]


def tokenize(text: str | None, vocabulary: Vocabulary) -> TokenPieces:
    """Return the tokens of the pieces of a document; no pieces for a row without text."""
    return [] if text is None else [vocabulary.encode(piece) for piece in clean(text)]


def pack(pieces: TokenPieces) -> bytes:
    """Pack a record: the number of pieces, their lengths, their tokens, int32 little-endian."""
    numbers = [len(pieces), *map(len, pieces), *itertools.chain.from_iterable(pieces)]
    return np.array(numbers, "<i4").tobytes()


def unpack(record: bytes) -> TokenPieces:
    """Return the tokens of the pieces of a record."""
    numbers = np.frombuffer(record, "<i4").tolist()
    first = numbers[0] + 1  # the index of the first token
    ends = itertools.accumulate(numbers[1:first], initial=first)
    return [numbers[begin:end] for begin, end in itertools.pairwise(ends)]


def identity(vocabulary: Vocabulary, splits: Mapping[str, Split]) -> dict[str, Any]:
    """Return everything that decides the records, as JSON has it; if equal, the tokens are equal.

    Args:
        vocabulary: the vocabulary of the tokens.
        splits: {"TASK/SPLIT": split}.

    Raises:
        ValueError: a split is not read from files.
    """
    return {
        "format": FORMAT,
        "vocabulary": vocabulary.digest,
        "splits": {key: _documents(split) for key, split in splits.items()},
    }


def pieces(
    folder: TokenizedFolder, key: str, split: Split, vocabulary: Vocabulary
) -> Callable[[int], TokenPieces]:
    """Return a function from the index of a row to the tokens of its pieces.

    Args:
        folder: a folder of tokenized documents.
        key: "TASK/SPLIT".
        split: the documents that the folder must have been made from.
        vocabulary: the vocabulary of the tokens.

    Raises:
        ValueError: see `TokenizedFolder.files`.
    """
    return _Records(folder.files(key, identity(vocabulary, {key: split}))).pieces


class _Records:
    """The records of several files, one file after the other."""

    def __init__(self, files: Sequence[str]):
        self._files = [Records(file) for file in files]
        self._ends = [*itertools.accumulate(map(len, self._files))]

    def pieces(self, number: int) -> TokenPieces:
        """Return the tokens of the pieces of a row."""
        index = bisect.bisect_right(self._ends, number)
        return unpack(self._files[index][number - self._ends[index] + len(self._files[index])])


def _documents(split: Split) -> dict[str, Any]:
    """Return what decides the documents of a split; the files may be in another folder."""
    if not isinstance(split.rows, Files):
        raise ValueError(
            "data.tokenized: these rows are not read from files, and are tokenized while training"
        )
    found = map(paths.fingerprint, split.rows.paths)
    return {
        "rows": len(split.rows),
        "text": split.rows.text,
        "held_out": split.held_out,
        "validation": split.validation,
        "files": [one and [one[0], one[2]] for one in found],  # without the time
    }
