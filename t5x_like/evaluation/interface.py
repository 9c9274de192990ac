"""What a measurement asks of a model that reads and writes text, and of the rows that it reads."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from t5x_like.inference.likelihood import Pair, Score
from t5x_like.names import hint

Row = Mapping[str, Any]  # fields: a string, or a list of strings
# The numbers that are found, and what was made of each row, as JSON has it.
Measured = tuple[dict[str, float], list[dict[str, Any]]]


class TextModel(Protocol):
    """A model with its vocabulary; see t5x_like.inference.text_model."""

    @property
    def length(self) -> int:
        """Tokens of a row: a prompt, or without an encoder a prompt and what comes after it."""

    @property
    def encodes(self) -> bool:
        """Whether an encoder reads the prompt."""

    def tokens(self, text: str, *, end: bool) -> list[int]:
        """The tokens of a text, and the end token after them if it is asked for."""

    def excess(self, prompt: str, continuation: str | None) -> int:
        """By how many tokens the two are too long; None for what `generate` may write."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """The likelihood of continuations of prompts; prompts too long lose their beginning."""

    def score_tokens(self, pairs: Sequence[Pair]) -> list[Score]:
        """The same of tokens as they are."""

    def generate(self, prompts: Sequence[str]) -> list[str]:
        """What is written after each prompt."""


def text_of(row: Row, name: str) -> str:
    """A field of a row that is a string.

    Raises:
        ValueError: the row has no such field, with the nearest, or it is no string.
    """
    if name not in row:
        raise ValueError(f"a row has no field {name!r}.{hint(name, row)}")
    if not isinstance(row[name], str):
        raise ValueError(f"the field {name!r} of a row is no string but {row[name]!r:.80}")
    return row[name]


def choices_of(row: Row) -> list[str]:
    """The field `choices` of a row.

    Raises:
        ValueError: it has no choices, or `targets` is none of them.
    """
    choices = list(row.get("choices", ()))
    if len(choices) < 2:
        raise ValueError(f"a row needs a field `choices`, two strings or more, not {choices!r:.80}")
    if text_of(row, "targets") not in choices:
        raise ValueError(
            f"targets={row['targets']!r:.80} is none of the choices.{hint(row['targets'], choices)}"
        )
    return choices
