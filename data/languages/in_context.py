"""Dictionaries that hold for one document only (for what a model infers in its context).

    map red to four ; map blue to one ; map red to four ; map green to two ;

A document has its own one-to-one mapping from keys to values. An example gives the value of a key.
The value of a key that was shown before is certain (zero nats); of a new key each value that was
not used yet is equally likely. So the loss of an optimal model falls with the examples in the
context exactly as far as keys are repeated, and a model without induction stays at log(values).

The task `shots` has one question with `shots` examples before it, as pairs: the asked key is among
the examples, so with 0 shots the best accuracy is 1 / values and with 1 or more it is 1.
"""

import functools
from typing import Any

from data.languages.language import Draw, Row, corpus, show
from t5x_like.grain_pipeline.corpus import Corpus

KEYS = ("red", "blue", "green", "white", "black", "brown", "gold", "gray")
VALUES = ("one", "two", "three", "four", "five", "six", "seven", "eight")


def corpora(
    *,
    documents: int = 20_000,
    validation: int = 2000,
    seed: int = 0,
    examples: int = 16,
    shots: int = 4,
) -> dict[str, Corpus]:
    """Return the corpora "in_context" and "shots".

    Args:
        documents, validation, seed: see `language.corpus`.
        examples: examples of a document.
        shots: examples before a question.
    """
    of: dict[str, Any] = {"documents": documents, "validation": validation, "seed": seed}
    return {
        "in_context": corpus(
            functools.partial(document, examples=examples), f"in_context {examples}", **of
        ),
        "shots": corpus(
            functools.partial(question, shots=shots),
            f"shots {shots}",
            fields=("inputs", "targets"),
            **of,
        ),
    }


def document(draw: Draw, *, examples: int) -> Row:
    """Return examples of one mapping."""
    known: dict[str, str] = {}
    return {"text": " ".join(_example(draw, draw.one(KEYS), known) for _ in range(examples))}


def question(draw: Draw, *, shots: int) -> Row:
    """Return examples and a question about a key in them; without examples about any key."""
    known: dict[str, str] = {}
    examples = [_example(draw, draw.one(KEYS), known) for _ in range(shots)]
    asked = draw.one(list(known) or KEYS)
    draw.given()
    answer = _value(draw, asked, known)
    return {"inputs": " ".join([*examples, f"map {asked} to"]), "targets": answer}


def _example(draw: Draw, key: str, known: dict[str, str]) -> str:
    return f"map {key} to {_value(draw, key, known)} ;"


def _value(draw: Draw, key: str, known: dict[str, str]) -> str:
    if key not in known:
        known[key] = draw.one([value for value in VALUES if value not in known.values()])
    return known[key]


if __name__ == "__main__":
    show(corpora())
