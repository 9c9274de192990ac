r"""GPT-3's ten tasks of arithmetic, as generated questions (Brown et al. 2020, section 3.9.1).

    python -m t5x_like.evaluate --config=configs/pretrained.py:arithmetic --config.initialize=gpt2

| task | in the paper | a row |
|---|---|---|
| `two_digit_addition`, ..., `five_digit_addition` | 2D+ to 5D+ | What is 98 plus 45? 143 |
| `two_digit_subtraction`, ..., `five_digit_subtraction` | 2D- to 5D- | What is 33 minus 88? -55 |
| `two_digit_multiplication` | 2Dx | What is 95 times 45? 4275 |
| `single_digit_three_ops` | 1DC | What is (9 + 8) * 2? 34 |

Numbers are uniform: from 0 to 99 for two digits; so are the operations +, - and * of 1DC. The names
and the wording are of the released questions (github.com/openai/gpt-3, data/), in which 1DC has its
parentheses around the first two digits; section 3.9.1 describes them around the last two.

With the template of the config a prompt is "Q: What is 98 plus 45?\n\nA:", as in the release. Only
an answer that equals the target counts (`accuracy`; `exact_match` ignores a minus sign).
"""

import functools
import operator
from collections.abc import Callable

from data.languages.language import Draw, Language, Row, corpus, show
from t5x_like.grain_pipeline.corpus import Corpus

Operation = Callable[[int, int], int]
_WORDS: dict[str, tuple[str, Operation]] = {
    "addition": ("plus", operator.add),
    "subtraction": ("minus", operator.sub),
    "multiplication": ("times", operator.mul),
}
_SIGNS: dict[str, Operation] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_DIGITS = {"two": 2, "three": 3, "four": 4, "five": 5}


def corpora(*, documents: int = 10_000, validation: int = 2000, seed: int = 0) -> dict[str, Corpus]:
    """Return the corpora of the ten tasks, with the fields `inputs` and `targets`.

    Args:
        documents: questions that the examples in a prompt are sampled from.
        validation: questions to ask; 2,000 in the paper.
        seed: see `language.corpus`.

    Raises:
        ValueError: a number is below 1.
    """
    return {
        name: corpus(
            make,
            name,
            documents=documents,
            validation=validation,
            seed=seed,
            fields=("inputs", "targets"),
        )
        for name, make in TASKS.items()
    }


def two_numbers(draw: Draw, *, digits: int, operation: str) -> Row:
    """Return a question about two numbers of at most `digits` digits, and its answer."""
    word, compute = _WORDS[operation]
    first, second = (draw.one(range(10**digits)) for _ in range(2))
    draw.given()
    return {
        "inputs": f"What is {first} {word} {second}?",
        "targets": str(compute(first, second)),
    }


def three_digits(draw: Draw) -> Row:
    """Return a question about three digits and two operations, and its answer."""
    first, second, third = (draw.one(range(10)) for _ in range(3))
    inner, outer = (draw.one([*_SIGNS]) for _ in range(2))
    draw.given()
    answer = _SIGNS[outer](_SIGNS[inner](first, second), third)
    return {
        "inputs": f"What is ({first} {inner} {second}) {outer} {third}?",
        "targets": str(answer),
    }


TASKS: dict[str, Language] = {
    **{
        f"{name}_digit_{operation}": functools.partial(
            two_numbers, digits=digits, operation=operation
        )
        for name, digits in _DIGITS.items()
        for operation in ("addition", "subtraction")
    },
    "two_digit_multiplication": functools.partial(
        two_numbers, digits=2, operation="multiplication"
    ),
    "single_digit_three_ops": three_digits,
}


if __name__ == "__main__":
    show(corpora())
