"""Format held-out examples for reading: the model's prediction beside the original."""

import dataclasses
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

SENTINEL = re.compile(r"<extra_id_(\d+)>")

_CONTEXT = 60  # characters shown on each side of a blank
_ELLIPSIS = " ... "
_LABEL = 11  # characters of "    model: "


@dataclasses.dataclass(frozen=True)
class Span:
    """A blank of a text: its number, and the words that the model and the original put there."""

    number: int
    predicted: str
    original: str

    @property
    def right(self) -> bool:
        """Whether the model's words are exactly the original's."""
        return self.predicted == self.original


def spans(masked: str, predicted: str, original: str) -> list[Span]:
    """Return the blanks of a text whose spans are replaced by sentinels, in order.

    Args:
        masked: "The <extra_id_0> sat on <extra_id_1> mat."
        predicted, original: each sentinel, followed by the words that it replaces.
    """
    filled = [_filled(text) for text in (predicted, original)]
    names = SENTINEL.findall(masked)
    return [
        Span(number, *(texts.get(name, "") for texts in filled))
        for number, name in enumerate(names, start=1)
    ]


def describe_spans(masked: str, spans: Sequence[Span], *, width: int) -> str:
    """Format a text with numbered blanks, and below it a line for each blank, right or wrong.

    Of a long text only the words near the blanks are shown.

    Args:
        width: characters of a line.
    """
    texts = [" ".join(text.split()) for text in SENTINEL.split(masked)[::2]]
    last = len(texts) - 1
    near = [
        _shorten(text, first=_CONTEXT * (n > 0), last=_CONTEXT * (n < last))
        for n, text in enumerate(texts)
    ]
    blanks = [f"__{span.number}__" for span in spans] + [""]
    sentence = " ".join(part for pair in zip(near, blanks, strict=True) for part in pair if part)
    room = (width - 16) // 2 - len(_ELLIPSIS)
    rows = [("model", "original"), *((span.predicted, span.original) for span in spans)]
    cells = [[_shorten(text, first=room, last=0) for text in row] for row in rows]
    wide = max(len(cell) for cell, _ in cells)
    marks = ["", *(f"{'right' if span.right else 'wrong'} __{span.number}__" for span in spans)]
    table = [
        f"  {mark:12}{cell:{wide}}  {original}".rstrip()
        for mark, (cell, original) in zip(marks, cells, strict=True)
    ]
    return "\n".join([textwrap.fill(sentence, width), *table])


def describe_fields(fields: Mapping[str, Any], *, width: int) -> str:
    """Format a line for each field, `name: value`; long values are wrapped, and cut in the middle.

    Args:
        width: characters of a line.
    """
    lines = []
    for name, value in fields.items():
        text = _shorten(" ".join(str(value).split()), first=2 * width, last=2 * width)
        indent = " " * _LABEL
        lines.append(
            textwrap.fill(
                text, width, initial_indent=f"{name:>{_LABEL - 2}}: ", subsequent_indent=indent
            )
            if text
            else f"{name:>{_LABEL - 2}}: "
        )
    return "\n".join(lines)


def describe_share(spans: Sequence[Span], *, examples: int) -> str:
    """Describe how many of the spans of some examples are filled exactly."""
    right, number = sum(span.right for span in spans), len(spans)
    share = f"{right} of {number} spans are filled exactly ({right / number:.0%})"
    return f"{share}, in {examples} examples"


def _filled(text: str) -> dict[str, str]:
    """Return the words after each sentinel."""
    parts = SENTINEL.split(text)
    words = (" ".join(part.split()) for part in parts[2::2])
    return dict(zip(parts[1::2], words, strict=True))


def _shorten(text: str, *, first: int, last: int) -> str:
    """Return the first and the last characters of a text, with dots for the part left out."""
    if len(text) <= first + last + len(_ELLIPSIS):
        return text
    start = text[:first].rsplit(" ", 1)[0] if first else ""
    end = text[len(text) - last :].split(" ", 1)[-1] if last else ""
    return f"{start}{_ELLIPSIS}{end}".strip()
