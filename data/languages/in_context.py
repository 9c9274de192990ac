"""Dictionaries that hold for one document only (for what a model infers in its context).

    red four ; red four ; blue one ; red four ; green two ; blue one ;

A document has its own one-to-one mapping from keys to values. An example gives the value of a key.
The value of a key that was shown before is certain (zero nats); of a new key each value that was
not used yet is equally likely. So the loss of an optimal model falls with the examples in the
context exactly as far as keys are repeated, and a model without induction stays at log(values).

Documents begin with few keys and go on with more: an example has a new key with probability `new`.
With few keys a value is guessed from the values in the context alone, and from there a network
comes to read the keys. Where each example had one of all keys, networks of two and four layers
learned nothing from the context in 3,000 batches.

The task `shots` has one question with `shots` examples before it, as pairs: the asked key is among
the examples, so with 0 shots the best accuracy is 1 / values and with 1 or more it is 1.
"""

import functools
from collections.abc import Collection
from typing import Any

from data.languages.language import Draw, Row, chance, corpus, show
from t5x_like.grain_pipeline.corpus import Corpus

KEYS = ("red", "blue", "green", "white", "black", "brown", "gold", "gray")
VALUES = ("one", "two", "three", "four", "five", "six", "seven", "eight")


def corpora(
    *,
    documents: int = 20_000,
    validation: int = 2000,
    seed: int = 0,
    examples: int = 16,
    new: float = 0.25,
    shots: int = 4,
) -> dict[str, Corpus]:
    """Return the corpora "in_context" and "shots".

    Args:
        documents, validation, seed: see `language.corpus`.
        examples: examples of a document.
        new: the probability that an example has a key that was not shown before, while there is
            one.
        shots: examples before a question.

    Raises:
        ValueError: `new` is not a probability above 0.
    """
    if not 0 < new <= 1:
        raise ValueError(f"new={new} must be above 0 and at most 1")
    of: dict[str, Any] = {"documents": documents, "validation": validation, "seed": seed}
    return {
        "in_context": corpus(
            functools.partial(document, examples=examples, new=new),
            f"in_context {examples} {new}",
            **of,
        ),
        "shots": corpus(
            functools.partial(question, shots=shots, new=new),
            f"shots {shots} {new}",
            fields=("inputs", "targets"),
            **of,
        ),
    }


def document(draw: Draw, *, examples: int, new: float) -> Row:
    """Return examples of one mapping."""
    return {"text": " ".join(_examples(draw, examples, {}, new=new))}


def question(draw: Draw, *, shots: int, new: float) -> Row:
    """Return examples and a question about a key in them; without examples about any key."""
    known: dict[str, str] = {}
    examples = _examples(draw, shots, known, new=new)
    asked = draw.one(list(known) or KEYS)
    draw.given()
    answer = _value(draw, asked, known)
    return {"inputs": " ".join([*examples, asked]), "targets": answer}


def _examples(draw: Draw, number: int, known: dict[str, str], *, new: float) -> list[str]:
    examples = []
    for _ in range(number):
        key = _key(draw, known, new=new)
        examples.append(f"{key} {_value(draw, key, known)} ;")
    return examples


def _key(draw: Draw, known: Collection[str], *, new: float) -> str:
    left = [key for key in KEYS if key not in known]
    if known and left:
        return draw.one(left if chance(draw, new) else sorted(known))
    return draw.one(left or KEYS)


def _value(draw: Draw, key: str, known: dict[str, str]) -> str:
    if key not in known:
        known[key] = draw.one([value for value in VALUES if value not in known.values()])
    return known[key]


if __name__ == "__main__":
    show(corpora())
