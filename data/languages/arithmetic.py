"""Sums in steps (for chain of thought, and for answers that need more than one step).

    start with 4 , add 3 , times 2 , minus 5 : 4 then 7 then 4 then 9 so 9 .

A problem has a first digit and some operations on the last digit of the result (all numbers are
taken modulo 10). With its steps an answer is a chain of single operations, each a table of 100
entries; without them a model must do all operations at once. The answer is certain, and each digit
is equally likely as an answer to a model that cannot calculate: the base rate is 0.1.

| task | rows |
|---|---|
| `arithmetic` | documents: a problem, its steps, its answer |
| `direct` | pairs: a problem, its answer |
| `with_steps` | pairs: a problem, its steps and its answer |
"""

import functools
from collections.abc import Callable
from typing import Any

from data.languages.language import Draw, Row, corpus, show
from t5x_like.grain_pipeline.corpus import Corpus

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": lambda number, other: (number + other) % 10,
    "minus": lambda number, other: (number - other) % 10,
    "times": lambda number, other: (number * other) % 10,
}
# "times" by an even number or 5 would forget the number; these keep all ten answers equally likely.
_OTHERS = {"add": range(1, 10), "minus": range(1, 10), "times": (3, 7, 9)}


def corpora(
    *, documents: int = 20_000, validation: int = 2000, seed: int = 0, steps: int = 3
) -> dict[str, Corpus]:
    """Return the corpora "arithmetic", "direct" and "with_steps".

    Args:
        documents, validation, seed: see `language.corpus`.
        steps: operations of a problem.

    Raises:
        ValueError: `steps` is below 1.
    """
    if steps < 1:
        raise ValueError(f"steps={steps} must be 1 or more")
    of: dict[str, Any] = {"documents": documents, "validation": validation, "seed": seed}
    pairs = ("inputs", "targets")
    return {
        "arithmetic": corpus(functools.partial(document, steps=steps), f"sums {steps}", **of),
        "direct": corpus(
            functools.partial(pair, steps=steps, shown=False), f"direct {steps}", fields=pairs, **of
        ),
        "with_steps": corpus(
            functools.partial(pair, steps=steps, shown=True), f"steps {steps}", fields=pairs, **of
        ),
    }


def document(draw: Draw, *, steps: int) -> Row:
    """Return a problem with its steps and its answer."""
    problem, chain, answer = _problem(draw, steps)
    return {"text": f"{problem} {chain} so {answer}"}


def pair(draw: Draw, *, steps: int, shown: bool) -> Row:
    """Return a problem, and its answer after its steps if they are shown."""
    problem, chain, answer = _problem(draw, steps)
    draw.given()
    return {"inputs": problem, "targets": f"{chain} so {answer}" if shown else answer}


def _problem(draw: Draw, steps: int) -> tuple[str, str, str]:
    """Return a problem, its numbers one after the other, and its answer."""
    number = draw.one(range(10))
    words, numbers = [f"start with {number}"], [number]
    for _ in range(steps):
        name = draw.one([*OPERATIONS])
        other = draw.one(_OTHERS[name])
        number = OPERATIONS[name](number, other)
        words.append(f"{name} {other}")
        numbers.append(number)
    return " , ".join(words) + " :", " then ".join(map(str, numbers)), f"{number} ."


if __name__ == "__main__":
    show(corpora())
