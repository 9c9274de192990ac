"""A corpus of documents by their number, in splits, and the function of the data modules with one.

    corpora(**settings) -> dict[str, Corpus]       the corpora by the names of their tasks

A data module with this function (data/grain_files.py) is read without seqio.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence

from t5x_like.grain_pipeline.farm_hash import fingerprint
from t5x_like.grain_pipeline.rows_of_files import Files
from t5x_like.names import choose

# Held-out documents are chosen in steps of one in ten thousand.
_BUCKETS = 10_000
_SPACE = re.compile(r"[\t\n\f\r ]+")


@dataclasses.dataclass(frozen=True)
class Split:
    """The documents of a split.

    Attributes:
        rows: the documents, and others.
        held_out: None if all rows are of the split; else the share of the rows that are held out.
        validation: whether those held out are of the split, or the others.
    """

    rows: Files
    held_out: float | None = None
    validation: bool = False

    def document(self, number: int) -> str | None:
        """The text of a row; None for one without text, or of another split."""
        text = self.rows[number]
        if text is None or self.held_out is None:
            return text
        return text if is_held_out(text, fraction=self.held_out) == self.validation else None

    def documents(self) -> Iterator[str]:
        """The texts of the split, in order."""
        texts = map(self.document, range(len(self.rows)))
        return (text for text in texts if text is not None)


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Documents in splits.

    Attributes:
        splits: "train" and "validation".
        number: of training documents, where it is known.
    """

    splits: Mapping[str, Split]
    number: int | None = None


def from_files(
    files: str | Sequence[str],
    *,
    text: str = "text",
    validation_files: str | Sequence[str] | None = None,
    held_out: float = 0.01,
    documents: int | None = None,
) -> Corpus:
    """The corpus of files in one of the formats of `rows_of_files`.

    Args:
        files: path, pattern, or list of them.
        text: the field or column of the documents.
        validation_files: as `files`; None: a part of `files` is held out.
        held_out: the size of this part, from 0 to 1.
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
    """The splits of corpora, by "TASK/SPLIT".

    Raises:
        ValueError: there is no corpus of a name.
    """
    return {
        f"{task}/{name}": split
        for task in tasks
        for name, split in choose("data.task", task, corpora).splits.items()
    }


def is_held_out(text: str, *, fraction: float) -> bool:
    """Whether a document is held out: the same ones as `preprocessing.sources.held_out`."""
    words = _SPACE.sub(" ", text).strip(" \t\n\v\f\r")
    return fingerprint(words.encode()) % _BUCKETS < round(fraction * _BUCKETS)
