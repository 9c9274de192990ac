"""A corpus of rows by index, in splits, and the `corpora` function of data modules.

    corpora(**settings) -> dict[str, Corpus]       the corpora by the names of their tasks

grain reads the corpora of a data module that has this function. If it also has `register`, seqio
reads it unless `data.driver` is "grain". A row is a document, or has the fields that an objective
reads, such as "text_a" and "label". If rows depend on the objective, `corpora` has an argument
`objective`, which is None for the text that a vocabulary is trained on.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from t5x_like.grain_pipeline.rows_of_files import ByIndex, Columns, Files, open_files
from t5x_like.grain_pipeline.tensorflow_values import fingerprint
from t5x_like.names import check_settings, choose
from t5x_like.objectives import AnyObjective

# Held-out documents are chosen in steps of one in ten thousand.
_BUCKETS = 10_000
_SPACE = re.compile(r"[\t\n\f\r ]+")


CorpusRow = Mapping[str, Any]


# A row is a document, fields, or None if it has no text.
RowsByIndex = ByIndex[str | CorpusRow | None]


@dataclasses.dataclass(frozen=True)
class Split:
    """The rows of a split.

    Attributes:
        rows: all rows, possibly including rows of other splits.
        held_out: None if all rows belong to the split; otherwise the share of the rows that is held
            out, chosen by the document, or by the first field of a row.
        validation: whether the split consists of the held-out rows, or of the others.
        files: the files of rows in memory.
        tidy: whether cleaning tidies the white space of documents.
    """

    rows: RowsByIndex
    held_out: float | None = None
    validation: bool = False
    files: Sequence[str] = ()
    tidy: bool = True

    @property
    def paths(self) -> list[str]:
        """The files of the rows; empty if they are not from files."""
        return self.rows.paths if isinstance(self.rows, Files) else list(self.files)

    @functools.cached_property
    def identity(self) -> str:
        """What decides rows in memory or generated rows, for a data position."""
        if isinstance(self.rows, Files):
            columns = "" if set(self.rows.columns) == {"text"} else repr(dict(self.rows.columns))
            return columns if self.tidy else f"{columns} tidy=False"
        return repr(self.rows)

    def row(self, number: int) -> CorpusRow | None:
        """Return the fields of a row; None if it has no text, or belongs to another split."""
        row = self.rows[number]
        if row is None:
            return None
        row = {"text": row} if isinstance(row, str) else row
        if self.held_out is None:
            return row
        chosen = is_held_out(next(iter(row.values())), fraction=self.held_out)
        return row if chosen == self.validation else None

    def all_rows(self) -> Iterator[CorpusRow]:
        """Return the rows of the split, in order."""
        return filter(None, map(self.row, range(len(self.rows))))

    def document(self, number: int) -> str | None:
        """Return the text of a row; None if it has none, or belongs to another split."""
        row = self.row(number)
        return None if row is None else row["text"]


def all_texts(row: CorpusRow) -> Iterator[str]:
    """Yield every text of a row."""
    for value in row.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | tuple):
            yield from (text for text in value if isinstance(text, str))


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Rows in splits.

    Attributes:
        splits: "train", "validation" and others.
        number: the number of training documents, if it is known.
        fields: the fields of a row.
        cleaned: whether documents and pairs are cleaned before examples are made of them. Labelled
            text is not, since labels may name positions in it.
        texts: returns the texts of a row, to train a vocabulary on.
    """

    splits: Mapping[str, Split]
    number: int | None = None
    fields: tuple[str, ...] = ("text",)
    cleaned: bool = True
    texts: Callable[[CorpusRow], Iterable[str]] = all_texts


def in_memory(
    rows: Mapping[str, Sequence[CorpusRow]], *, files: Mapping[str, str], **settings: Any
) -> Corpus:
    """Return a corpus of rows that were read from files into memory.

    Args:
        rows: {split: rows}; all rows have the same fields.
        files: {split: its file}; "" for a split without one.
        settings: other attributes of a `Corpus`.
    """
    splits = {
        name: Split(list(split_rows), files=[files[name]] if files[name] else [])
        for name, split_rows in rows.items()
    }
    fields = next((tuple(row) for split_rows in rows.values() for row in split_rows), ())
    return Corpus(splits, len(rows["train"]), fields, cleaned=False, **settings)


def from_files(
    files: str | Sequence[str],
    *,
    text: str | None = None,
    inputs: str | None = None,
    targets: str | None = None,
    validation_files: str | Sequence[str] | None = None,
    held_out: float = 0.01,
    documents: int | None = None,
    tidy: bool = True,
) -> Corpus:
    """Make a corpus of documents or pairs from files in one of the formats of `rows_of_files`.

    Args:
        files: path, pattern, or list of paths and patterns.
        text: the field or column of the documents, "text" if not set.
        inputs, targets: the fields or columns of pairs, instead of `text`.
        validation_files: like `files`; None to hold out a part of `files`.
        held_out: the share to hold out, from 0 to 1.
        documents: the number of training rows, for `steps` in epochs.
        tidy: whether cleaning tidies white space in documents (docs/data.md); False for code.

    Raises:
        ValueError: a file or column does not exist, or a setting is out of range.
    """
    columns = columns_of(text=text, inputs=inputs, targets=targets)
    train = open_files("files", files, columns)
    if not validation_files:
        return held_out_of(train, held_out, number=documents, tidy=tidy)
    others = open_files("validation_files", validation_files, columns)
    splits = {"train": Split(train, tidy=tidy), "validation": Split(others, tidy=tidy)}
    return Corpus(splits, documents, tuple(columns))


def held_out_of(
    rows: Files, fraction: float, *, number: int | None = None, tidy: bool = True
) -> Corpus:
    """Return a corpus with a part of its rows held out for validation.

    Args:
        rows: the rows of both splits.
        fraction: the share to hold out, from 0 to 1.
        number: the number of training rows, if it is known.
        tidy: see `Split`.

    Raises:
        ValueError: the share is out of range.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"held_out={fraction!r} must be from 0 to 1.")
    splits = {
        name: Split(rows, fraction, validation, tidy=tidy)
        for name, validation in (("train", False), ("validation", True))
    }
    return Corpus(splits, number, tuple(rows.columns))


def columns_of(*, text: str | None, inputs: str | None, targets: str | None) -> Columns:
    """Return {field of a row: its column} for the column of documents, or the columns of pairs.

    Raises:
        ValueError: there are both, or half of a pair.
    """
    if inputs is None and targets is None:
        return {"text": text or "text"}
    if inputs is None or targets is None or text is not None:
        raise ValueError(
            f"text={text!r}, inputs={inputs!r}, targets={targets!r}: set `text` for documents, or "
            "both `inputs` and `targets` for pairs."
        )
    return {"inputs": inputs, "targets": targets}


def corpora_of(
    module: ModuleType, settings: Mapping[str, Any], objective: AnyObjective | None = None
) -> Mapping[str, Corpus]:
    """Return the corpora of a data module, by the names of their tasks.

    Args:
        module: a module with the function `corpora`.
        settings: its settings.
        objective: what examples are made of; None to read only texts.

    Raises:
        ValueError: a setting or a file does not exist.
    """
    of_run = {"objective": objective} if _takes_objective(module) else {}
    check_settings("data.settings", module.corpora, settings, given=of_run)
    return module.corpora(**of_run, **settings)


def _takes_objective(module: ModuleType) -> bool:
    return "objective" in inspect.signature(module.corpora).parameters


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
