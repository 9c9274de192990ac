"""Two languages with a hidden dictionary and another order (translation, with and without pairs).

    north: the kanigo bezoda zovege the toloba .    south: lo pepolo vafipe lo lobuko noninu !

A sentence of "north" is subject, verb, object; adjectives stand before nouns. "South" has a word of
its own for each word, adjectives after nouns, and the verb at the end. The translation of a
sentence is certain, so an optimal translator has a loss of 0 on targets and all sentences right.
Words have the same frequencies in both languages (1 / rank, over each part of speech), so that even
without pairs the dictionary can be found.

| task | rows |
|---|---|
| `pairs` | {"inputs": north, "targets": south} |
| `north`, `south` | documents of one language |
| `both` | documents of both languages, each in one, as mBART reads them |
"""

import functools
from collections.abc import Callable
from typing import Any

from data.languages.language import Draw, Row, corpus, invented, show
from t5x_like.grain_pipeline.corpus import Corpus

_PARTS = {"noun": 60, "verb": 30, "adjective": 20}


def corpora(
    *,
    documents: int = 20_000,
    validation: int = 2000,
    seed: int = 0,
    sentences: int = 3,
    adjective: float = 0.4,
) -> dict[str, Corpus]:
    """Return the corpora "pairs", "north", "south" and "both".

    Args:
        documents, validation, seed: see `language.corpus`.
        sentences: sentences of a document of one language; a pair is one sentence.
        adjective: the probability that a noun has an adjective.
    """
    of: dict[str, Any] = {"documents": documents, "validation": validation, "seed": seed}
    name = f"dictionary {sentences} {adjective}"
    languages: dict[str, tuple[Write, ...]] = {
        "north": (north,),
        "south": (south,),
        "both": (north, south),
    }
    found = {
        language: corpus(
            functools.partial(document, write=write, sentences=sentences, adjective=adjective),
            f"{name} {language}",
            **of,
        )
        for language, write in languages.items()
    }
    pair = functools.partial(translation, adjective=adjective)
    return {"pairs": corpus(pair, name, fields=("inputs", "targets"), **of), **found}


# Subject, verb, object: a noun phrase is the numbers of its noun and of its adjective, or -1.
Meaning = tuple[tuple[int, int], int, tuple[int, int]]
Write = Callable[[Meaning], list[str]]


def meaning(draw: Draw, *, adjective: float) -> Meaning:
    """Choose the meaning of a sentence."""

    def phrase() -> tuple[int, int]:
        noun = _ranked(draw, "noun")
        has_one = draw.one((True, False), (adjective, 1 - adjective))
        return noun, _ranked(draw, "adjective") if has_one else -1

    return phrase(), _ranked(draw, "verb"), phrase()


def _ranked(draw: Draw, part: str) -> int:
    number = _PARTS[part]
    return draw.one(range(number), [1 / rank for rank in range(1, number + 1)])


def north(said: Meaning) -> list[str]:
    """Return a sentence of the first language."""
    subject, verb, thing = said
    words = _words()["north"]

    def phrase(noun: int, adjective: int) -> list[str]:
        return [*([words["adjective"][adjective]] if adjective >= 0 else []), words["noun"][noun]]

    return ["the", *phrase(*subject), words["verb"][verb], "the", *phrase(*thing), "."]


def south(said: Meaning) -> list[str]:
    """Return a sentence of the second language."""
    subject, verb, thing = said
    words = _words()["south"]

    def phrase(noun: int, adjective: int) -> list[str]:
        return [words["noun"][noun], *([words["adjective"][adjective]] if adjective >= 0 else [])]

    return ["lo", *phrase(*subject), "lo", *phrase(*thing), words["verb"][verb], "!"]


def translation(draw: Draw, *, adjective: float) -> Row:
    """Return a sentence and its translation."""
    said = meaning(draw, adjective=adjective)
    draw.given()
    return {"inputs": " ".join(north(said)), "targets": " ".join(south(said))}


def document(draw: Draw, *, write: tuple[Write, ...], sentences: int, adjective: float) -> Row:
    """Return sentences of one language, chosen from those given."""
    language = draw.one(write) if len(write) > 1 else write[0]
    words: list[str] = []
    for _ in range(sentences):
        words += language(meaning(draw, adjective=adjective))
    return {"text": " ".join(words)}


@functools.cache
def _words() -> dict[str, dict[str, list[str]]]:
    total = sum(_PARTS.values())
    both = invented(2 * total, syllables=3)
    words = {}
    for index, language in enumerate(("north", "south")):
        own = iter(both[index * total : (index + 1) * total])
        words[language] = {part: [next(own) for _ in range(n)] for part, n in _PARTS.items()}
    return words


if __name__ == "__main__":
    show(corpora())
