"""Tokenize the documents of a data module into the files of a folder of tokenized documents."""

import dataclasses
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like import vocabularies
from t5x_like.batches import data_modules
from t5x_like.batches.tokenized_parts import Part
from t5x_like.grain_pipeline.corpus import Split, splits_of
from t5x_like.grain_pipeline.corpus_tasks import corpora_of
from t5x_like.grain_pipeline.tokenized_documents import identity, pack, tokenize

_MOST_FILES = 1024  # of a split


@dataclasses.dataclass(frozen=True)
class Documents:
    """What is tokenized, a `tokenized_parts.Text`.

    Attributes:
        module: the path of a data module with corpora.
        settings: its settings.
        vocabulary: the name of the vocabulary.
        tasks: the names of the corpora.
        rows: of a file, and more in a large corpus.
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
class _Rows(Part):
    """Rows of a split."""

    rows: range


@dataclasses.dataclass(frozen=True)
class OpenedDocuments:
    """Documents that were found; see `tokenized_parts.Opened`.

    Attributes:
        vocabulary: of the tokens.
        splits: by "TASK/SPLIT".
        rows: of a file.
    """

    vocabulary: vocabularies.Vocabulary
    splits: Mapping[str, Split]
    rows: int

    @property
    def identity(self) -> Mapping[str, Any]:
        """All that decides the tokens."""
        return identity(self.vocabulary, self.splits)

    @property
    def layout(self) -> Mapping[str, Any]:
        """The rows of a file."""
        return {"rows": self.rows}

    @property
    def keys(self) -> Sequence[str]:
        """The splits, also those without rows."""
        return tuple(self.splits)

    def parts(self) -> Sequence[Part]:
        """The files; none of a split without rows."""
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
        """Nothing: the parts are the folder."""

    def _parts(self, key: str, split: Split) -> list[_Rows]:
        number = min(max(1, -(-len(split.rows) // self.rows)), _MOST_FILES)
        ends = [len(split.rows) * n // number for n in range(number + 1)]
        return [
            _Rows(key, f"{key}-{n:05d}-of-{number:05d}.array_record", range(*pair))
            for n, pair in enumerate(itertools.pairwise(ends))
            if pair[0] < pair[1]
        ]
