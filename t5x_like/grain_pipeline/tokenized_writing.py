"""Tokenize the documents of a data module into the files of a folder of tokenized documents."""

import dataclasses
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like import vocabularies
from t5x_like.batches import data_modules
from t5x_like.batches.tokenized_folder import FilePart
from t5x_like.grain_pipeline.corpus import Split, splits_of
from t5x_like.grain_pipeline.corpus_tasks import corpora_of
from t5x_like.grain_pipeline.tokenized_documents import identity, pack, tokenize

_MOST_FILES = 1024  # per split


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

    vocabulary: vocabularies.Vocabulary
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
        return [part for key, own in self.splits.items() for part in self._parts(key, own)]

    def write(self, part: _Rows, file: pathlib.Path) -> None:
        """Tokenize rows into an ArrayRecord file."""
        from array_record.python.array_record_module import ArrayRecordWriter

        writer = ArrayRecordWriter(str(file), "group_size:1")  # for reading in any order
        for number in part.rows:
            document = self.splits[part.key].document(number)
            writer.write(pack(tokenize(document, self.vocabulary)))
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
