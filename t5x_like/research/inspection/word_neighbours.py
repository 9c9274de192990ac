"""The nearest neighbours of a word in its context: the texts that use it in the same sense.

Peters et al. 2018 (table 4) compare the states of ELMo at a word in a sentence with its states in
other sentences: the neighbours of "play" in a sentence about baseball are about sports, in a
sentence about actors about theatres. Here the vector of a word is the mean of its tokens' hidden
states after one layer.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from t5x_like.research.inspection.inspected import Inspected
from t5x_like.research.inspection.layer_statistics import cosines

MOST_TEXTS = 200  # in which the page looks for a word


@dataclasses.dataclass(frozen=True)
class Occurrence:
    """A word in a text.

    Attributes:
        where: where the text is: "FILE:LINE".
        text: the text.
        start, end: the range of the word's characters in the text.
    """

    where: str
    text: str
    start: int
    end: int

    def marked(self) -> str:
        """Return the text with the word in brackets."""
        word = self.text[self.start : self.end]
        return f"{self.text[: self.start]}[{word}]{self.text[self.end :]}"


@dataclasses.dataclass(frozen=True)
class Neighbour:
    """An occurrence, and the cosine of the angle between its vector and the query's."""

    occurrence: Occurrence
    cosine: float


def occurrences(word: str, texts: Iterable[tuple[str, str]]) -> list[Occurrence]:
    """Return where texts have a word, in upper or lower case, but not within another word.

    Args:
        texts: pairs of where a text is and the text.
    """
    pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
    return [
        Occurrence(where, text, *match.span())
        for where, text in texts
        for match in pattern.finditer(text)
    ]


def find(
    model: Inspected, query: Occurrence, others: Iterable[Occurrence], *, layer: int | None
) -> list[Neighbour]:
    """Return the other occurrences of a word, the most similar first.

    Args:
        layer: the index of the layer whose output is compared; None for the last.

    Raises:
        ValueError: a text is too long, the vocabulary has no token for the word, or does not
            return which characters a token has, or the network does not have the layer.
    """
    every = [(occurrence, *_tokenize(model, occurrence)) for occurrence in (query, *others)]
    _, tokens, _ = every[0]
    layers = len(model.first_hidden(tokens)) - 1
    layer = layers - 1 if layer is None else layer
    if not 0 <= layer < layers:
        raise ValueError(f"--layer={layer} does not exist: the layers are 0 to {layers - 1}")
    vectors = np.stack(
        [model.first_hidden(row)[layer + 1, word].mean(axis=0) for _, row, word in every]
    )
    neighbours = [
        Neighbour(occurrence, float(cosine))
        for (occurrence, _, _), cosine in zip(
            every[1:], cosines(vectors[0], vectors[1:]), strict=True
        )
    ]
    return sorted(neighbours, key=lambda neighbour: -neighbour.cosine)


def of_page(
    model: Inspected, *, word: str, text: str, texts: Sequence[str], layer: int | None
) -> dict[str, Any]:
    """Return the neighbours of a word as the page shows them.

    Args:
        word: the word.
        text: a text with the word; its first occurrence counts.
        texts: the texts to search.
        layer: see `find`.

    Raises:
        ValueError: there are too many texts, the word is not in them or not in the text; or see
            `find`.
    """
    if not word.strip():
        raise ValueError("give a word of the text")
    if len(texts) > MOST_TEXTS:
        raise ValueError(f"{len(texts)} other texts: at most {MOST_TEXTS} allowed")
    query = occurrences(word, [("the text", text)])
    others = occurrences(word, [(f"line {n}", line) for n, line in enumerate(texts, start=1)])
    for name, have in (("the text does not have", query), ("the other texts do not have", others)):
        if not have:
            raise ValueError(f"{name} the word {word!r}")
    layers = len(model.first_hidden(model.read(text))) - 1
    neighbours = find(model, query[0], others, layer=layer)
    return {
        "layers": layers,
        "layer": layers - 1 if layer is None else layer,
        "query": dataclasses.asdict(query[0]),
        "mean": sum(neighbour.cosine for neighbour in neighbours) / len(neighbours),
        "neighbours": [
            {**dataclasses.asdict(neighbour.occurrence), "cosine": neighbour.cosine}
            for neighbour in neighbours
        ],
    }


def _tokenize(model: Inspected, occurrence: Occurrence) -> tuple[list[int], list[int]]:
    """Return the tokens of the text, and the positions of the word among them."""
    tokens = model.read_line(occurrence.where, occurrence.text)
    ids, offsets = model.vocabulary.encode_with_offsets(occurrence.text)
    # There are special tokens before and after the tokens of the text.
    first = next(n for n in range(len(tokens)) if tokens[n : n + len(ids)] == ids)
    word = [
        first + number
        for number, (start, end) in enumerate(offsets)
        if max(start, occurrence.start) < min(end, occurrence.end)
    ]
    if not word:
        raise ValueError(f"{occurrence.where}: the vocabulary has no token for the word")
    return tokens, word
