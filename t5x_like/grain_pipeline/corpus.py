"""A corpus of rows by index, in splits, and the `corpora` function of data modules.

    corpora(**settings) -> dict[str, Corpus]       the corpora by the names of their tasks

A data module with this function (data/grain_files.py) is read without seqio. A row is a document,
or has the fields that an objective reads, such as "text_a" and "label".
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from t5x_like.grain_pipeline.rows_of_files import Files
from t5x_like.grain_pipeline.tensorflow_values import fingerprint
from t5x_like.names import choose

# Held-out documents are chosen in steps of one in ten thousand.
_BUCKETS = 10_000
_SPACE = re.compile(r"[\t\n\f\r ]+")


CorpusRow = Mapping[str, Any]


class RowsByIndex(Protocol):
    """Rows that can be read in any order."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, number: int) -> str | CorpusRow | None:
        """Return a row: a document, fields, or None for a row without a text."""


@dataclasses.dataclass(frozen=True)
class Split:
    """The rows of a split.

    Attributes:
        rows: all rows, possibly including documents of other splits.
        held_out: None if all rows belong to the split; otherwise the share of the documents that is
            held out.
        validation: whether the split consists of the held-out documents, or of the others.
    """

    rows: RowsByIndex
    held_out: float | None = None
    validation: bool = False

    @property
    def paths(self) -> list[str]:
        """The files of the rows; empty if they are not from files."""
        return self.rows.paths if isinstance(self.rows, Files) else []

    @property
    def identity(self) -> str:
        """What decides rows that are not from files, for a data position."""
        return "" if isinstance(self.rows, Files) else repr(self.rows)

    def row(self, number: int) -> CorpusRow | None:
        """Return the fields of a row; None if it has no text, or belongs to another split."""
        found = self.rows[number]
        if found is None or not isinstance(found, str):
            return found
        if self.held_out is not None:
            held_out = is_held_out(found, fraction=self.held_out)
            return {"text": found} if held_out == self.validation else None
        return {"text": found}

    def document(self, number: int) -> str | None:
        """Return the text of a row; None if it has none, or belongs to another split."""
        row = self.row(number)
        return None if row is None else row["text"]

    def documents(self) -> Iterator[str]:
        """Return the texts of the split, in order."""
        texts = map(self.document, range(len(self.rows)))
        return (text for text in texts if text is not None)


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Rows in splits.

    Attributes:
        splits: "train", "validation" and others.
        number: the number of training documents, if it is known.
        fields: the fields of a row.
        cleaned: whether documents are cleaned; what is generated needs no cleaning.
    """

    splits: Mapping[str, Split]
    number: int | None = None
    fields: tuple[str, ...] = ("text",)
    cleaned: bool = True


def from_files(
    files: str | Sequence[str],
    *,
    text: str = "text",
    validation_files: str | Sequence[str] | None = None,
    held_out: float = 0.01,
    documents: int | None = None,
) -> Corpus:
    """Make a corpus from files in one of the formats of `rows_of_files`.

    Args:
        files: path, pattern, or list of paths and patterns.
        text: the field or column of the documents.
        validation_files: like `files`; None to hold out a part of `files`.
        held_out: the share to hold out, from 0 to 1.
        documents: the number of training documents, for `steps` in epochs.

    Raises:
        ValueError: a file or column does not exist, or a setting is out of range.
    """
    if not 0 <= held_out <= 1:
        raise ValueError(f"held_out={held_out!r} must be from 0 to 1.")
    train = Files("files", files, text=text)
    if validation_files:
        others = Files("validation_files", validation_files, text=text)
        return Corpus({"train": Split(train), "validation": Split(others)}, documents)
    splits = {
        name: Split(train, held_out, validation)
        for name, validation in (("train", False), ("validation", True))
    }
    return Corpus(splits, documents)


def splits_of(corpora: Mapping[str, Corpus], *tasks: str) -> dict[str, Split]:
    """Return the splits of corpora, {"TASK/SPLIT": split}.

    Raises:
        ValueError: a name is not in `corpora`.
    """
    return {
        f"{task}/{name}": split
        for task in tasks
        for name, split in choose("data.task", task, corpora).splits.items()
    }


def is_held_out(text: str, *, fraction: float) -> bool:
    """Return whether a document is held out, exactly as `preprocessing.sources.held_out` does."""
    words = _SPACE.sub(" ", text).strip(" \t\n\v\f\r")
    return fingerprint(words.encode()) % _BUCKETS < round(fraction * _BUCKETS)
