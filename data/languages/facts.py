"""Facts about invented places and persons, some frequent and some rare (for what a model knows).

    the color of bamo is red . the food of kelu is rice .

The world has `entities` with one value for each relation, chosen once from a list by `world`. Texts
mention an entity in proportion to 1 / rank, so that a few have many mentions and most have few, and
say every fact in one of two ways. Questions ask for a fact without its text: what a model answers
it knows from its parameters (closed-book questions), from a graph (K-BERT's `graph`), or not at
all, and then an answer is made up.

| task | rows |
|---|---|
| `facts` | documents of facts |
| `questions` | pairs: a question, and its answer |
| `choices` | a question with four answers, one right |
| `completions` | a fact as text, without its value, and its value among all of its relation |

A text's value follows from the entity and the relation: it costs a model that knows the facts
nothing. The ceiling of the accuracy is 1. A few entities have most of the mentions, so a model that
knows only how often a value is right for a relation is right in 25% of the questions and
completions, not in 1 of 8, and in 41% of the choices, not in 1 of 4 (`world=0`, 200 entities).
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from data.languages.language import Draw, Row, corpus, invented, show
from t5x_like.grain_pipeline.corpus import Corpus

VALUES: dict[str, tuple[str, ...]] = {
    "color": ("red", "blue", "green", "white", "black", "brown", "gold", "gray"),
    "food": ("rice", "bread", "fish", "soup", "corn", "beans", "fruit", "cheese"),
    "animal": ("horse", "eagle", "lion", "whale", "snake", "goat", "owl", "bear"),
    "river": ("amber", "cold", "deep", "east", "long", "north", "swift", "wild"),
}
Facts = Mapping[tuple[str, str], str]  # (entity, relation) -> value


def corpora(
    *,
    documents: int = 20_000,
    validation: int = 2000,
    seed: int = 0,
    entities: int = 200,
    world: int = 0,
    sentences: int = 4,
) -> dict[str, Corpus]:
    """Return the corpora "facts", "questions", "choices" and "completions".

    Args:
        documents, validation, seed: see `language.corpus`.
        entities: the number of entities.
        world: the seed of the facts.
        sentences: facts of a document.
    """
    names, facts = invented(entities), facts_of(entities, world=world)
    of: dict[str, Any] = {"documents": documents, "validation": validation, "seed": seed}
    write = functools.partial(document, names=names, facts=facts, sentences=sentences)
    asked = functools.partial(question, names=names, facts=facts)
    name = f"facts {entities} {world} {sentences}"
    return {
        "facts": corpus(write, name, **of),
        "questions": corpus(asked, name, fields=("inputs", "targets"), **of),
        "choices": corpus(
            functools.partial(choice, names=names, facts=facts),
            name,
            fields=("text_a", "choices", "answer"),
            **of,
        ),
        "completions": corpus(
            functools.partial(completion, names=names, facts=facts),
            name,
            fields=("text", "inputs", "targets", "choices"),
            **of,
        ),
    }


def facts_of(entities: int, *, world: int) -> Facts:
    """Return the facts of a world: each value is equally likely, for each entity by itself."""
    generator = np.random.default_rng([7, world])
    return {
        (name, relation): values[int(generator.integers(len(values)))]
        for name in invented(entities)
        for relation, values in VALUES.items()
    }


def document(draw: Draw, *, names: Sequence[str], facts: Facts, sentences: int) -> Row:
    """Return some facts."""
    words: list[str] = []
    for _ in range(sentences):
        name, relation = _subject(draw, names)
        value = facts[name, relation]
        if draw.one((False, True)):
            words += ["the", relation, "of", name, "is", value, "."]
        else:
            words += [name, "has", "the", relation, value, "."]
    return {"text": " ".join(words)}


def question(draw: Draw, *, names: Sequence[str], facts: Facts) -> Row:
    """Return a question and its answer."""
    name, relation = _subject(draw, names)
    draw.given()
    return {"inputs": f"what is the {relation} of {name} ?", "targets": facts[name, relation]}


def choice(draw: Draw, *, names: Sequence[str], facts: Facts) -> Row:
    """Return a question, four answers in a random order, and the index of the right one."""
    name, relation = _subject(draw, names)
    right = facts[name, relation]
    wrong = [value for value in VALUES[relation] if value != right]
    offered = [right]
    for _ in range(3):
        offered.append(draw.one(wrong))
        wrong.remove(offered[-1])
    answer = draw.one(range(4))
    offered[0], offered[answer] = offered[answer], offered[0]
    draw.given()
    text = f"the {relation} of {name} is"
    return {"text_a": text, "choices": offered, "answer": answer}


def completion(draw: Draw, *, names: Sequence[str], facts: Facts) -> Row:
    """Return a fact, its first words, its value, and all values of its relation."""
    name, relation = _subject(draw, names)
    draw.given()
    value = facts[name, relation]
    inputs = f"the {relation} of {name} is"
    return {
        "text": f"{inputs} {value} .",
        "inputs": inputs,
        "targets": value,
        "choices": VALUES[relation],
    }


def _subject(draw: Draw, names: Sequence[str]) -> tuple[str, str]:
    weights = [1 / rank for rank in range(1, len(names) + 1)]
    return draw.one(names, weights), draw.one([*VALUES])


if __name__ == "__main__":
    show(corpora())
