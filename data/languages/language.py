"""Generated languages: corpora whose best possible predictions are known.

A language is a function from a `Draw` to a row: it makes the choices of one document by asking the
draw. What it asks for is all that is random, and different choices give different texts, so the
draw knows the negative log-likelihood of the document, `nats`: the least expected loss of a model
that reads from left to right. Rows have the field `nats` besides the fields of the text. For pairs
and labelled rows it is the least loss of the targets, or of the label, given the inputs.

    python -m data.languages.agreement          prints the entropy, and samples with their nats

A module of a language has the function `corpora`, and is read without TensorFlow
(`--config.data.module=data/languages/agreement.py`). The same settings and the same seed give the
same documents on every machine; held-out documents have other random numbers.
"""

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from t5x_like.grain_pipeline.corpus import Corpus, Split

T = TypeVar("T")
Row = dict[str, Any]


class Draw(Protocol):
    """The choices of one document."""

    def one(self, options: Sequence[T], weights: Sequence[float] | None = None) -> T:
        """Choose an option, each equally likely or in proportion to its weight."""

    def given(self) -> None:
        """Do not count the choices so far: the model reads them, and predicts what follows."""


# The choices of a document -> its fields.
Language = Callable[[Draw], Row]


class Sampled:
    """Choices by random numbers.

    Attributes:
        nats: the negative log-probability of the choices that count.
    """

    def __init__(self, generator: np.random.Generator):
        self.nats = 0.0
        self._generator = generator

    def one(self, options: Sequence[T], weights: Sequence[float] | None = None) -> T:
        """Choose an option; see `Draw`."""
        if weights is None:
            self.nats += math.log(len(options))
            return options[int(self._generator.integers(len(options)))]
        ends = np.cumsum(weights)
        index = int(np.searchsorted(ends, self._generator.random() * ends[-1], side="right"))
        self.nats -= math.log(weights[index] / ends[-1])
        return options[index]

    def given(self) -> None:
        """Do not count the choices so far; see `Draw`."""
        self.nats = 0.0


def chance(draw: Draw, probability: float) -> bool:
    """Return True with a probability between 0 and 1."""
    return draw.one((True, False), (probability, 1 - probability))


def several(draw: Draw, options: Sequence[T], number: int) -> list[T]:
    """Choose different options in a random order; all choices are equally likely."""
    left, chosen = [*options], []
    for _ in range(number):
        option = draw.one(left)
        left.remove(option)
        chosen.append(option)
    return chosen


@dataclasses.dataclass(frozen=True)
class Documents:
    """Documents of a language by index.

    Attributes:
        language: makes a document.
        number: the number of documents.
        seed: together with the index it determines a document.
        name: everything that decides the language, for the position of a run in its data.
    """

    language: Language = dataclasses.field(repr=False)
    number: int
    seed: tuple[int, ...]
    name: str

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, number: int) -> Row:
        """Return the fields of a document, with its `nats`."""
        if not 0 <= number < self.number:
            raise IndexError(number)
        draw = Sampled(np.random.default_rng([*self.seed, number]))
        return {**self.language(draw), "nats": draw.nats}


def corpus(
    language: Language,
    name: str,
    *,
    documents: int,
    validation: int = 2000,
    seed: int = 0,
    fields: Sequence[str] = ("text",),
) -> Corpus:
    """Return documents of a language in the splits "train" and "validation".

    Args:
        language: makes a document.
        name: everything that decides the language.
        documents, validation: the number of documents of each split.
        seed: of the documents.
        fields: the fields of a row, besides `nats`.

    Raises:
        ValueError: a number is below 1.
    """
    for setting, number in (("documents", documents), ("validation", validation)):
        if number < 1:
            raise ValueError(f"data.settings.{setting}={number} must be 1 or more")
    splits = {
        split: Split(Documents(language, number, (seed, index), name))
        for index, (split, number) in enumerate(
            {"train": documents, "validation": validation}.items()
        )
    }
    return Corpus(splits, documents, (*fields, "nats"), cleaned=False)


def entropy(split: Split) -> float:
    """Return the mean nats of the rows of a split: the least loss that a model can have on them."""
    return math.fsum(row["nats"] for row in rows_of(split)) / len(split.rows)


def rows_of(split: Split) -> list[Row]:
    """Return all rows of a split."""
    return [dict(row) for number in range(len(split.rows)) if (row := split.row(number))]


def show(corpora: Mapping[str, Corpus], *, samples: int = 5) -> None:
    """Print the entropy of each corpus, and samples."""
    for name, one in corpora.items():
        split = one.splits["validation"]
        sys.stdout.write(f"{name}: {entropy(split):.3f} nats\n")
        for row in rows_of(split)[:samples]:
            nats = row.pop("nats")
            sys.stdout.write(f"  {nats:7.3f}  {row}\n")


_ONSETS, _VOWELS = "bdfgklmnprstvz", "aeiou"


def invented(number: int, *, syllables: int = 2) -> list[str]:
    """Return different invented words: "baba", "babe", ... in an order that mixes sounds.

    Raises:
        ValueError: there are fewer words of this length.
    """
    sounds = [onset + vowel for onset in _ONSETS for vowel in _VOWELS]
    most = len(sounds) ** syllables
    if number > most:
        raise ValueError(f"{number} words of {syllables} syllables: there are {most}")
    step = 1009  # prime, and no divisor of the number of words, so that all are different
    numbers = ((step * index) % most for index in range(number))
    return [
        "".join(sounds[one // len(sounds) ** place % len(sounds)] for place in range(syllables))
        for one in numbers
    ]
