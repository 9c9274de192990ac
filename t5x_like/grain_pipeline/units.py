"""What examples are made of: tokens for some chunks, groups of documents, or rows."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from t5x_like.grain_pipeline.corpus import CorpusRow
from t5x_like.grain_pipeline.tokenized_documents import TokenPieces
from t5x_like.objectives import (
    AnyObjective,
    Example,
    ExampleSpec,
    Groups,
    Pairs,
    Rows,
    RunningText,
    grouping,
)
from t5x_like.objectives.objective import PAIR, text_of
from t5x_like.vocabularies import Vocabulary

# The tokens of a document, int32 [L]; the (tokens, sentence lengths) of each of its pieces; or a
# list of one row.
Items: TypeAlias = Any


@dataclasses.dataclass(frozen=True)
class UnitReader:
    """The units of a corpus.

    Attributes:
        size: the items of a unit; only the last unit of an epoch may have fewer.
        items: the index of a row of the corpus -> its items.
        examples: (the items of a unit, in parts; random numbers) -> its examples.
    """

    size: int
    items: Callable[[int], Items]
    examples: Callable[[Sequence[Items], np.random.Generator], list[Example]]


@dataclasses.dataclass(frozen=True)
class Reads:
    """How the rows of a corpus are read, by their index.

    Attributes:
        vocabulary: the vocabulary of the tokens.
        fields: the names of the fields of a row.
        row: the fields of a row; None for a row of another split.
        texts: the cleaned texts of a document's pieces.
        tokens: the tokens of a document's pieces; an objective that needs texts does not call it.
    """

    vocabulary: Vocabulary
    fields: tuple[str, ...]
    row: Callable[[int], CorpusRow | None]
    texts: Callable[[int], Sequence[str]]
    tokens: Callable[[int], TokenPieces]


def reads_texts(objective: AnyObjective) -> bool:
    """Return whether the tokens of whole documents are not enough for an objective."""
    return isinstance(objective, Groups) or (
        isinstance(objective, RunningText) and objective.encode is not None
    )


def units_of(objective: AnyObjective, spec: ExampleSpec, reads: Reads) -> UnitReader:
    """Return the units of an objective.

    Raises:
        ValueError: the lengths or the vocabulary do not fit, or rows lack a field.
    """
    if isinstance(objective, Pairs):
        return _pairs(objective, spec, reads)
    if isinstance(objective, Rows):
        return _rows(objective, spec, reads)
    if "text" not in reads.fields:
        raise ValueError(
            f"data.objective={objective.name!r} reads documents, and the task's rows have "
            f"{', '.join(reads.fields)}"
        )
    if isinstance(objective, RunningText):
        return _chunks(objective, spec, reads)
    return _groups(objective, spec, reads)


def _chunks(objective: RunningText, spec: ExampleSpec, reads: Reads) -> UnitReader:
    length, make = objective.units(spec)
    encode, end = objective.encode, spec.features["targets"].end

    def items(row: int) -> np.ndarray:
        if encode is not None:
            added = [encode(text, reads.vocabulary) for text in reads.texts(row)]
        elif objective.end_documents:
            added = [np.append(tokens, end) for tokens in reads.tokens(row) if len(tokens)]
        else:
            added = [np.asarray(tokens) for tokens in reads.tokens(row)]
        return np.concatenate([*added, []]).astype(np.int32)

    return UnitReader(
        size=length,
        items=items,
        examples=lambda parts, generator: make(np.concatenate(parts), generator),
    )


def _groups(objective: Groups, spec: ExampleSpec, reads: Reads) -> UnitReader:
    rows = objective.plan(spec)

    def items(row: int) -> list[tuple[np.ndarray, np.ndarray]]:
        return [
            grouping.encode(text, reads.vocabulary, between=objective.between)
            for text in reads.texts(row)
        ]

    def examples(parts: Sequence[Items], generator: np.random.Generator) -> list[Example]:
        tokens, lengths = zip(*itertools.chain.from_iterable(parts), strict=True)
        counts = np.array([len(group_lengths) for group_lengths in lengths])
        return rows(np.concatenate(tokens), np.concatenate(lengths), counts, generator)

    return UnitReader(size=objective.documents, items=items, examples=examples)


def _pairs(objective: Pairs, spec: ExampleSpec, reads: Reads) -> UnitReader:
    objective.check_fields(reads.fields)
    make = objective.plan(spec)

    def examples(parts: Sequence[Items], generator: np.random.Generator) -> list[Example]:
        [[row]] = parts
        texts = [text_of(row[side]) for side in PAIR]
        if objective.continued:
            tokens = [*spec.features["inputs"].vocabulary.encode_continued(*texts)]
        else:
            of_sides = [spec.features[side].vocabulary for side in PAIR]
            tokens = [side.encode(text) for side, text in zip(of_sides, texts, strict=True)]
        inputs, targets = (np.array(ids, np.int32) for ids in tokens)
        example = make(inputs, targets, generator)
        return [] if example is None else [example]

    return UnitReader(size=1, items=lambda number: _listed(reads.row(number)), examples=examples)


def _rows(objective: Rows, spec: ExampleSpec, reads: Reads) -> UnitReader:
    fields = objective.present(reads.fields)
    make = objective.plan(spec)
    types = {name: np.float32 if name == "value" else np.int32 for name in objective.features}

    def examples(parts: Sequence[Items], generator: np.random.Generator) -> list[Example]:
        [[row]] = parts
        row_examples = make({name: row[name] for name in fields}, generator)
        return [
            {name: np.asarray(example[name]).astype(kind) for name, kind in types.items()}
            for example in row_examples
        ]

    return UnitReader(size=1, items=lambda number: _listed(reads.row(number)), examples=examples)


def _listed(row: CorpusRow | None) -> list[CorpusRow]:
    return [] if row is None else [row]
