"""Two languages with a hidden dictionary and another order (translation, with and without pairs).

    north: the kanigo bezoda zovege the toloba .    south: lo pepolo vafipe lo lobuko noninu !

A sentence of "north" is subject, verb, object; adjectives stand before nouns. "South" has a word of
its own for each word, adjectives after nouns, and the verb at the end. The translation of a
sentence is certain, so an optimal translator has a loss of 0 on targets and all sentences right.
Words have the same frequencies in both languages (1 / rank, over each part of speech), so that even
without pairs the dictionary can be found, if there is much text: near ranks differ little. Two
settings make it easier. With `shared` some words are the same in both languages, like names and
numbers. With `preference` each noun prefers some verbs and adjectives, and each verb some objects.
Then words that have the same shared words beside them, equally often, are translations of each
other: `tests/data/test_languages.py` finds the whole dictionary by counting.

| task | rows |
|---|---|
| `pairs` | {"inputs": north, "targets": south} |
| `north`, `south` | documents of one language |
| `both` | documents of both languages, each in one, as mBART reads them |
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

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
    words: float = 1.0,
    shared: float = 0.0,
    preference: float = 0.0,
) -> dict[str, Corpus]:
    """Return the corpora "pairs", "north", "south" and "both".

    Args:
        documents, validation, seed: see `language.corpus`.
        sentences: sentences of a document of one language; a pair is one sentence.
        adjective: the probability that a noun has an adjective.
        words: the share of the 60 nouns, 30 verbs and 20 adjectives that is used.
        shared: the share of these words that are the same in both languages.
        preference: if above 0, the word before (the noun of an adjective, the subject of a verb,
            the verb of an object) has its own ranking of the next words, which follow in proportion
            to 1 / rank^preference. 0: words are independent.

    Raises:
        ValueError: a share is out of range, or the preference below 0.
    """
    if not 0 < words <= 1 or not 0 <= shared <= 1 or preference < 0:
        raise ValueError(
            f"data.settings: words={words} must be above 0 and at most 1, shared={shared} from 0 "
            f"to 1, and preference={preference} 0 or more"
        )
    of: dict[str, Any] = {"documents": documents, "validation": validation, "seed": seed}
    name = f"dictionary {sentences} {adjective} {words} {shared} {preference}"
    mean = functools.partial(meaning, adjective=adjective, words=words, preference=preference)
    in_south = functools.partial(south, shared=shared)
    languages: dict[str, tuple[Write, ...]] = {
        "north": (north,),
        "south": (in_south,),
        "both": (north, in_south),
    }
    found = {
        language: corpus(
            functools.partial(document, write=write, sentences=sentences, mean=mean),
            f"{name} {language}",
            **of,
        )
        for language, write in languages.items()
    }
    pair = functools.partial(translation, write=in_south, mean=mean)
    return {"pairs": corpus(pair, name, fields=("inputs", "targets"), **of), **found}


# Subject, verb, object: a noun phrase is the numbers of its noun and of its adjective, or -1.
Meaning = tuple[tuple[int, int], int, tuple[int, int]]
Write = Callable[[Meaning], list[str]]
Mean = Callable[[Draw], Meaning]


def meaning(
    draw: Draw, *, adjective: float, words: float = 1.0, preference: float = 0.0
) -> Meaning:
    """Choose the meaning of a sentence; see `corpora`."""

    def choose(part: str, *before: int) -> int:
        weights = _weights(part, before if preference else (), words, preference or 1.0)
        return draw.one(range(len(weights)), weights)

    def phrase(*before: int) -> tuple[int, int]:
        noun = choose("noun", *before)
        has_one = draw.one((True, False), (adjective, 1 - adjective))
        return noun, choose("adjective", noun) if has_one else -1

    subject = phrase()
    verb = choose("verb", subject[0])
    return subject, verb, phrase(verb)


@functools.cache
def _weights(
    part: str, before: tuple[int, ...], words: float, exponent: float
) -> tuple[float, ...]:
    """Return the weights of the words of a part of speech, in the ranking of the word before."""
    number = max(round(words * _PARTS[part]), 1)
    ranks = np.arange(1, number + 1)
    if before:
        ranks = np.random.default_rng([number, *before]).permutation(ranks)
    return tuple((1 / ranks ** (exponent if before else 1.0)).tolist())


def north(said: Meaning) -> list[str]:
    """Return a sentence of the first language."""
    subject, verb, thing = said
    words = _words()["north"]

    def phrase(noun: int, adjective: int) -> list[str]:
        return [*([words["adjective"][adjective]] if adjective >= 0 else []), words["noun"][noun]]

    return ["the", *phrase(*subject), words["verb"][verb], "the", *phrase(*thing), "."]


def south(said: Meaning, *, shared: float = 0.0) -> list[str]:
    """Return a sentence of the second language, where some words are the first language's."""
    subject, verb, thing = said

    def word(part: str, number: int) -> str:
        # Evenly over the ranks.
        is_shared = int((number + 1) * shared) > int(number * shared)
        return _words()["north" if is_shared else "south"][part][number]

    def phrase(noun: int, adjective: int) -> list[str]:
        return [word("noun", noun), *([word("adjective", adjective)] if adjective >= 0 else [])]

    return ["lo", *phrase(*subject), "lo", *phrase(*thing), word("verb", verb), "!"]


def translation(draw: Draw, *, write: Write, mean: Mean) -> Row:
    """Return a sentence and its translation."""
    said = mean(draw)
    draw.given()
    return {"inputs": " ".join(north(said)), "targets": " ".join(write(said))}


def document(draw: Draw, *, write: tuple[Write, ...], sentences: int, mean: Mean) -> Row:
    """Return sentences of one language, chosen from those given."""
    language = draw.one(write) if len(write) > 1 else write[0]
    words: list[str] = []
    for _ in range(sentences):
        words += language(mean(draw))
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
