"""What the examples of an objective are made of: chunks of tokens, or groups of documents."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from t5x_like.grain_pipeline.tokenized_documents import Pieces
from t5x_like.objectives import AnyObjective, Example, Groups, Plan, RunningText, sentences
from t5x_like.vocabularies import Vocabulary

# The tokens of a document, int32 [L], or the (tokens, sentence lengths) of each of its pieces.
Items: TypeAlias = Any


@dataclasses.dataclass(frozen=True)
class Units:
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
class Pieced:
    """The pieces of the documents of a corpus, by the index of a row.

    Attributes:
        vocabulary: the vocabulary of the tokens.
        texts: the cleaned texts of a row's pieces.
        tokens: the tokens of a row's pieces; an objective that needs texts does not call it.
    """

    vocabulary: Vocabulary
    texts: Callable[[int], Sequence[str]]
    tokens: Callable[[int], Pieces]


def reads_texts(objective: AnyObjective) -> bool:
    """Return whether the tokens of whole documents are not enough for an objective."""
    return isinstance(objective, Groups) or (
        isinstance(objective, RunningText) and objective.encode is not None
    )


def units_of(objective: AnyObjective, given: Plan, pieces: Pieced) -> Units:
    """Return the units of an objective over documents.

    Raises:
        ValueError: the lengths or the vocabulary do not fit, or the objective reads other rows than
            documents.
    """
    if isinstance(objective, RunningText):
        return _chunks(objective, given, pieces)
    if isinstance(objective, Groups):
        return _groups(objective, given, pieces)
    raise ValueError(
        f"data.objective={objective.name!r} reads rows with fields, and this data module has "
        "documents: use a module of seqio tasks, as data/labelled_files.py or data/text_files.py"
    )


def _chunks(objective: RunningText, given: Plan, pieces: Pieced) -> Units:
    length, example = objective.plan(given)
    encode, end = objective.encode, given.features["targets"].end

    def items(row: int) -> np.ndarray:
        if encode is not None:
            added = [encode(text, pieces.vocabulary) for text in pieces.texts(row)]
        elif objective.end_documents:
            added = [np.append(tokens, end) for tokens in pieces.tokens(row) if len(tokens)]
        else:
            added = [np.asarray(tokens) for tokens in pieces.tokens(row)]
        return np.concatenate([*added, []]).astype(np.int32)

    return Units(
        size=length,
        items=items,
        examples=lambda parts, generator: [example(np.concatenate(parts), generator)],
    )


def _groups(objective: Groups, given: Plan, pieces: Pieced) -> Units:
    rows = objective.plan(given)

    def items(row: int) -> list[tuple[np.ndarray, np.ndarray]]:
        return [
            sentences.encode(text, pieces.vocabulary, between=objective.between)
            for text in pieces.texts(row)
        ]

    def examples(parts: Sequence[Items], generator: np.random.Generator) -> list[Example]:
        tokens, lengths = zip(*itertools.chain.from_iterable(parts), strict=True)
        counts = np.array([len(one) for one in lengths])
        return rows(np.concatenate(tokens), np.concatenate(lengths), counts, generator)

    return Units(size=objective.documents, items=items, examples=examples)
