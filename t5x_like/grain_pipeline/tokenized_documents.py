"""Tokenized documents in a folder, which are read instead of cleaning and tokenizing the text.

A folder has TASK/SPLIT-00000-of-00003.array_record files, with a record for each row of the corpus.
A record has the tokens of the pieces of a cleaned document, before an objective joins them.
Everything random happens later, so one folder serves all objectives, lengths, seeds and orders.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like import paths, vocabularies
from t5x_like.batches import data_modules
from t5x_like.batches.document_cleaning import clean
from t5x_like.batches.tokenized_folder import FilePart, TokenizedFolder
from t5x_like.grain_pipeline.corpus import Split, corpora_of, splits_of
from t5x_like.grain_pipeline.rows_of_files import Files, Joined, Records
from t5x_like.vocabularies import Vocabulary

FORMAT = 1  # version of the records and of the rules of cleaning: raise it if either changes

_MOST_FILES = 1024  # per split

TokenPieces = Sequence[Sequence[int]]


def tokenize(text: str | None, vocabulary: Vocabulary, *, tidy: bool = True) -> TokenPieces:
    """Return the tokens of the pieces of a document; no pieces for a row without text."""
    return [] if text is None else [vocabulary.encode(piece) for piece in clean(text, tidy=tidy)]


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
    files = folder.files(key, identity(vocabulary, {key: split}))
    records = Joined([Records(file) for file in files])
    return lambda number: unpack(records[number])


def _documents(split: Split) -> dict[str, Any]:
    """Return what decides the documents of a split; the files may be in another folder."""
    if not isinstance(split.rows, Files) or "text" not in split.rows.columns:
        raise ValueError(
            "data.tokenized: these rows are not documents in files, and are tokenized while "
            "training: set data.tokenized=''"
        )
    fingerprints = map(paths.fingerprint, split.rows.paths)
    return {
        "rows": len(split.rows),
        "text": split.rows.columns["text"],
        "held_out": split.held_out,
        "validation": split.validation,
        **({} if split.tidy else {"tidy": False}),
        "files": [
            fingerprint and [fingerprint[0], fingerprint[2]] for fingerprint in fingerprints
        ],  # without the time
    }


@dataclasses.dataclass(frozen=True)
class CorpusText:
    """The documents to tokenize, a `tokenized_folder.Text`.

    Attributes:
        module: the path of a data module with corpora.
        settings: its settings.
        vocabulary: the name of the vocabulary.
        tasks: the names of the corpora.
        rows: the number of rows per file; more in a large corpus.
    """

    module: str
    settings: Mapping[str, Any]
    vocabulary: str
    tasks: Sequence[str]
    rows: int = 10_000

    def open(self) -> "OpenedDocuments":
        """Find the documents.

        Raises:
            ValueError: the vocabulary, a corpus, a setting or a file does not exist.
        """
        corpora = corpora_of(data_modules.load(self.module), self.settings)
        splits = splits_of(corpora, *self.tasks)
        return OpenedDocuments(vocabularies.load(self.vocabulary), splits, self.rows)


@dataclasses.dataclass(frozen=True)
class _Rows(FilePart):
    """A range of rows of a split that becomes one file."""

    rows: range


@dataclasses.dataclass(frozen=True)
class OpenedDocuments:
    """Documents that exist and can be tokenized; see `tokenized_folder.Opened`.

    Attributes:
        vocabulary: the vocabulary of the tokens.
        splits: {"TASK/SPLIT": split}.
        rows: the number of rows per file.
    """

    vocabulary: Vocabulary
    splits: Mapping[str, Split]
    rows: int

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that decides the tokens."""
        return identity(self.vocabulary, self.splits)

    @property
    def layout(self) -> Mapping[str, Any]:
        """The number of rows per file."""
        return {"rows": self.rows}

    @property
    def keys(self) -> Sequence[str]:
        """The splits, including splits without rows."""
        return tuple(self.splits)

    def parts(self) -> Sequence[FilePart]:
        """Return the files; a split without rows has no files."""
        return [part for key, split in self.splits.items() for part in self._parts(key, split)]

    def write(self, part: _Rows, file: pathlib.Path) -> None:
        """Tokenize rows into an ArrayRecord file."""
        from array_record.python.array_record_module import ArrayRecordWriter

        writer = ArrayRecordWriter(str(file), "group_size:1")  # for reading in any order
        for number in part.rows:
            split = self.splits[part.key]
            tokens = tokenize(split.document(number), self.vocabulary, tidy=split.tidy)
            writer.write(pack(tokens))
        writer.close()

    def finish(self, folder: pathlib.Path) -> None:
        """Do nothing: the folder consists only of its parts."""

    def _parts(self, key: str, split: Split) -> list[_Rows]:
        number = min(max(1, -(-len(split.rows) // self.rows)), _MOST_FILES)
        ends = [len(split.rows) * n // number for n in range(number + 1)]
        return [
            _Rows(key, f"{key}-{n:05d}-of-{number:05d}.array_record", range(*pair))
            for n, pair in enumerate(itertools.pairwise(ends))
            if pair[0] < pair[1]
        ]
