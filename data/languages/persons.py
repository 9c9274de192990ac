"""Persons whose facts are only in a graph (for texts that need facts, and texts that do not).

    zanu sees bada gosi tomi bada . kelu sees nuvi pora sefa nuvi .

A sentence has a person and words of one of 8 fields; which person says nothing about the field.
The graph has facts of each person, one to four, all with words of one field, `(zanu, sees, bada)`;
no text has them. Both tasks ask for a field. If the sentences have words, it is the field of the
words of the first sentence: whoever can read needs no graph, and its facts are noise. If they have
no words, it is the field of the first person's facts: nobody knows it without the graph.

| task | rows |
|---|---|
| `persons` | documents of sentences |
| `stated` | {"text_a": two sentences, "label": 0 to 7}: the field of the first one's words |
| `unstated` | {"text_a": two sentences without words, "label": 0 to 7}: the first person's field |
"""

import functools
from typing import Any

import numpy as np

from data.languages.language import Draw, Row, corpus, invented, several, show
from t5x_like.grain_pipeline.corpus import Corpus

FIELDS, WORDS, FACTS = 8, 12, 4


def corpora(
    *,
    documents: int = 20_000,
    validation: int = 2000,
    seed: int = 0,
    persons: int = 2000,
    world: int = 0,
    sentences: int = 4,
    words: int = 4,
) -> dict[str, Corpus]:
    """Return the corpora "persons", "stated" and "unstated".

    Args:
        documents, validation, seed: see `language.corpus`.
        persons: the number of persons.
        world: the seed of the facts.
        sentences: sentences of a document.
        words: words of a sentence that has words.
    """
    of: dict[str, Any] = {"documents": documents, "validation": validation, "seed": seed}
    name = f"persons {persons} {world} {sentences} {words}"
    labelled: dict[str, Any] = {"fields": ("text_a", "label"), **of}
    return {
        "persons": corpus(
            functools.partial(document, persons=persons, sentences=sentences, words=words),
            name,
            **of,
        ),
        "stated": corpus(functools.partial(stated, persons=persons, words=words), name, **labelled),
        "unstated": corpus(
            functools.partial(unstated, persons=persons, world=world), name, **labelled
        ),
    }


def labels(objective: str, *, task: str = "", **settings: object) -> tuple[str, ...]:
    """Return the names of the classes of "stated" and "unstated"."""
    del objective, settings
    return () if task == "persons" else tuple(f"field {number}" for number in range(FIELDS))


@functools.cache
def names(persons: int) -> tuple[str, ...]:
    """Return the names of the persons, which are not words of a field."""
    return tuple(invented(FIELDS * WORDS + persons)[FIELDS * WORDS :])


@functools.cache
def fields_of(persons: int, *, world: int) -> dict[str, int]:
    """Return the field of each person's facts, which are equally likely."""
    generator = np.random.default_rng([11, world])
    return {name: int(generator.integers(FIELDS)) for name in names(persons)}


def triples(persons: int, *, world: int) -> list[tuple[str, str, str]]:
    """Return (subject, relation, object) of every fact, one to four of each person."""
    generator = np.random.default_rng([12, world])
    found = []
    for name, field in fields_of(persons, world=world).items():
        number = 1 + int(generator.integers(FACTS))
        chosen = generator.choice(_words(field), number, replace=False)
        found += [(name, "sees", str(word)) for word in chosen]
    return found


def document(draw: Draw, *, persons: int, sentences: int, words: int) -> Row:
    """Return some sentences."""
    text = []
    for _ in range(sentences):
        text += _sentence(draw, draw.one(names(persons)), words)[0]
    return {"text": " ".join(text)}


def stated(draw: Draw, *, persons: int, words: int) -> Row:
    """Return two sentences and the field of the words of the first."""
    first, second = several(draw, names(persons), 2)
    text, field = _sentence(draw, first, words)
    text += _sentence(draw, second, words)[0]
    draw.given()
    return {"text_a": " ".join(text), "label": field}


def unstated(draw: Draw, *, persons: int, world: int) -> Row:
    """Return two sentences without words and the field of the first person's facts."""
    first, second = several(draw, names(persons), 2)
    draw.given()
    label = fields_of(persons, world=world)[first]
    return {"text_a": f"{first} sees . {second} sees .", "label": label}


def _sentence(draw: Draw, person: str, words: int) -> tuple[list[str], int]:
    """Return the words of a sentence, and their field."""
    field = draw.one(range(FIELDS))
    own = _words(field)
    return [person, "sees", *(draw.one(own) for _ in range(words)), "."], field


@functools.cache
def _words(field: int) -> tuple[str, ...]:
    return tuple(invented(FIELDS * WORDS)[field * WORDS : (field + 1) * WORDS])


if __name__ == "__main__":
    show(corpora())
