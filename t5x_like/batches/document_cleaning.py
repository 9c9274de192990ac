"""Clean documents in Python, by the rules of `preprocessing/cleaning.py`; count what changes."""

import collections
import re
import threading

from t5x_like.names import choose

EVENTS = {
    "documents": "read",
    "invalid_utf8": "with bytes that are not UTF-8, replaced by U+FFFD",
    "control_characters": "with control characters, removed",
    "not_text": "skipped: over a tenth of it is not UTF-8",
    "empty": "skipped: empty, or nothing left after cleaning",
    "cut": "longer than the maximum: cut into pieces, or the end of a pair's side dropped",
    "kept": "given on, pieces counted one by one",
}

_counts: collections.Counter[str] = collections.Counter()
_lock = threading.Lock()


def count(event: str, number: int = 1) -> None:
    """Add `number` to the counter of `event`; thread-safe.

    Raises:
        ValueError: `event` is not one of `EVENTS`.
    """
    choose("event", event, EVENTS)
    with _lock:
        _counts[event] += number


def counts() -> dict[str, int]:
    """Return how often each of `EVENTS` happened in this process since the last reset."""
    with _lock:
        return {event: _counts[event] for event in EVENTS}


def reset_counts() -> None:
    """Set every counter to zero."""
    with _lock:
        _counts.clear()


def describe_counts() -> str:
    """Return a line for a log with the events that happened: "documents 120, empty 3, ..."."""
    return ", ".join(f"{event} {number:,}" for event, number in counts().items() if number)


MOST_CHARACTERS = 100_000  # of a document; longer ones are split into pieces

_LINE_BREAK = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff]+")
_BLANKS = re.compile("[ \t\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]+")
_ASCII_SPACE = " \t\n\v\f\r"


def clean(text: str) -> list[str]:
    """Return the non-empty pieces of a document; no pieces if the document is skipped."""
    count("documents")
    replaced = text.count("\ufffd")
    lines = _LINE_BREAK.sub("\n", text)
    printable = _CONTROL.sub("", lines)
    if printable != lines:
        count("control_characters")
    tidy = re.sub(" ?\n ?", "\n", _BLANKS.sub(" ", printable))
    tidy = re.sub("\n{3,}", "\n\n", tidy).strip(_ASCII_SPACE)
    if 10 * replaced > len(text):
        count("not_text")
        return []
    if not tidy:
        count("empty")
        return []
    if len(tidy) > MOST_CHARACTERS:
        count("cut")
    starts = range(0, len(tidy), MOST_CHARACTERS)
    # A split beside a space leaves it at the end of a piece, and a piece may be only a space.
    pieces = [tidy[n : n + MOST_CHARACTERS].strip(_ASCII_SPACE) for n in starts]
    kept = [piece for piece in pieces if piece]
    count("kept", len(kept))
    return kept
