"""Many dialects in one corpus (for experts against a dense network of the same cost).

    <the name of a dialect> kelu bamo tare ...

A document begins with the name of its dialect. Its words follow each other by the dialect's own
table: after each word come `next_words` words, in proportion to 1 / rank. All dialects have the
same words, and their tables have nothing in common, so that what is learned of one dialect does not
help with the others: capacity is needed in proportion to the number of dialects, and at each word
only one table is used.
"""

import functools
from typing import Any

import numpy as np

from data.languages.language import Draw, Row, corpus, invented, show
from t5x_like.grain_pipeline.corpus import Corpus


def corpora(
    *,
    documents: int = 50_000,
    validation: int = 2000,
    seed: int = 0,
    dialects: int = 32,
    words: int = 64,
    next_words: int = 4,
    length: int = 40,
    world: int = 0,
) -> dict[str, Corpus]:
    """Return the corpus "dialects".

    Args:
        documents, validation, seed: see `language.corpus`.
        dialects: the number of tables.
        words: the number of words of all dialects.
        next_words: words that may follow a word.
        length: words of a document.
        world: the seed of the tables.

    Raises:
        ValueError: there are fewer words than may follow a word.
    """
    if not 1 <= next_words <= words:
        raise ValueError(f"next_words={next_words} must be from 1 to words={words}")
    sizes: dict[str, Any] = {
        "dialects": dialects,
        "words": words,
        "next_words": next_words,
        "world": world,
    }
    made = functools.partial(document, length=length, **sizes)
    name = f"dialects {sizes} {length}"
    found = corpus(made, name, documents=documents, validation=validation, seed=seed)
    return {"dialects": found}


def document(
    draw: Draw, *, dialects: int, words: int, next_words: int, world: int, length: int
) -> Row:
    """Return the name of a dialect and some of its words."""
    names = invented(dialects + words)
    dialect = draw.one(range(dialects))
    word = draw.one(range(words))
    text = [names[dialect], names[dialects + word]]
    weights = [1 / rank for rank in range(1, next_words + 1)]
    following = tables(dialects=dialects, words=words, next_words=next_words, world=world)
    for _ in range(length - 1):
        word = draw.one(following[dialect][word], weights)
        text.append(names[dialects + word])
    return {"text": " ".join(text)}


@functools.cache
def tables(*, dialects: int, words: int, next_words: int, world: int) -> list[list[list[int]]]:
    """Return for each dialect and word the words that may follow it, the likeliest first."""
    generator = np.random.default_rng([11, world])
    return [
        [generator.permutation(words)[:next_words].tolist() for _ in range(words)]
        for _ in range(dialects)
    ]


if __name__ == "__main__":
    show(corpora())
