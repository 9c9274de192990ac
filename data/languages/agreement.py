"""Agreement over a distance, in both directions (for depth, memory, and bidirectional models).

    those cats which this dog sees run . these dogs sleep .

A noun is singular or plural. Its determiner stands before it and agrees with it; its verb comes
after a relative clause, which has a noun and a verb of its own, and perhaps another clause in it. A
left-to-right model knows the number of a noun from its determiner and must keep it until the verb;
read from right to left, it is the verb that gives it away. A masked noun shows its number on both
sides, a masked verb only by a noun far to its left.

Choices: the number and the word of each noun, the word of each verb, and whether there is a clause.
"""

import functools

from data.languages.language import Draw, Row, chance, corpus, show
from t5x_like.grain_pipeline.corpus import Corpus

NOUNS = ("cat", "dog", "bird", "child", "farmer", "teacher", "singer", "king")
VERBS = ("sleep", "run", "sing", "laugh", "wait", "work", "fall", "win")
SEEING = ("see", "hear", "know", "like", "meet", "need", "call", "help")
_IRREGULAR = {"child": "children"}


def corpora(
    *,
    documents: int = 20_000,
    validation: int = 2000,
    seed: int = 0,
    sentences: int = 4,
    clause: float = 0.5,
    deepest: int = 3,
) -> dict[str, Corpus]:
    """Return the corpus "agreement".

    Args:
        documents, validation, seed: see `language.corpus`.
        sentences: sentences of a document.
        clause: the probability of a clause, at each depth.
        deepest: the most clauses within each other.
    """
    made = functools.partial(document, sentences=sentences, clause=clause, deepest=deepest)
    name = f"agreement {sentences} {clause} {deepest}"
    found = corpus(made, name, documents=documents, validation=validation, seed=seed)
    return {"agreement": found}


def document(draw: Draw, *, sentences: int, clause: float, deepest: int) -> Row:
    """Return some sentences."""
    words: list[str] = []
    for _ in range(sentences):
        plural = _noun_phrase(draw, words, clause=clause, deeper=deepest)
        words += [verb(draw.one(VERBS), plural), "."]
    return {"text": " ".join(words)}


def _noun_phrase(draw: Draw, words: list[str], *, clause: float, deeper: int) -> bool:
    """Add a noun and perhaps its clause; return whether the noun is plural."""
    plural = draw.one((False, True))
    near = draw.one((False, True))
    determiner = {(False, False): "that", (False, True): "this"}
    determiner |= {(True, False): "those", (True, True): "these"}
    words += [determiner[plural, near], noun(draw.one(NOUNS), plural)]
    if deeper and chance(draw, clause):
        words.append("which")
        inner = _noun_phrase(draw, words, clause=clause, deeper=deeper - 1)
        words.append(verb(draw.one(SEEING), inner))
    return plural


def noun(word: str, plural: bool) -> str:
    """Return a noun in its number."""
    return _IRREGULAR.get(word, f"{word}s") if plural else word


def verb(word: str, plural: bool) -> str:
    """Return a verb in the number of its noun."""
    return word if plural else f"{word}s"


if __name__ == "__main__":
    show(corpora())
