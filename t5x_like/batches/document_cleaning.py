"""Clean documents and pairs in Python, as `preprocessing/cleaning.py`; count what changes."""

import collections
import re
import threading
from collections.abc import Iterable, Mapping, Sequence

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


MOST_CHARACTERS = 100_000  # of a document; longer documents are split

_LINE_BREAK = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff]+")
_BLANKS = re.compile("[ \t\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]+")
_ASCII_SPACE = " \t\n\v\f\r"
_SKIPPED = {"not_text", "empty"}


def clean(text: str, *, tidy: bool = True) -> list[str]:
    """Return the non-empty pieces of a document; no pieces if the document is skipped.

    Args:
        text: the document.
        tidy: whether to clean white space and control characters.
    """
    cleaned, events = _tidy(text) if tidy else (text, _unfit(text, text.strip(_ASCII_SPACE)))
    skipped = bool(events & _SKIPPED)
    if len(cleaned) > MOST_CHARACTERS and not skipped:
        events.add("cut")
    starts = range(0, 0 if skipped else len(cleaned), MOST_CHARACTERS)
    pieces = [cleaned[n : n + MOST_CHARACTERS] for n in starts]
    if tidy:  # a cut next to a space leaves it at the end of a piece, or as a piece
        pieces = [piece.strip(_ASCII_SPACE) for piece in pieces]
    nonempty = [piece for piece in pieces if piece]
    _count(events, kept=len(nonempty))
    return nonempty


def clean_pair(row: Mapping[str, str], sides: Sequence[str]) -> dict[str, str] | None:
    """Return the sides of a pair, truncated to `MOST_CHARACTERS`; None if it is skipped.

    A pair is skipped if either side is empty or not text; white space stays as it is. An event that
    happens to both sides counts once.
    """
    cleaned: dict[str, str] = {}
    events: set[str] = set()
    for side in sides:
        text = row[side]
        events |= _unfit(text, text.strip(_ASCII_SPACE))
        events |= {"cut"} if len(text) > MOST_CHARACTERS else set()
        cleaned[side] = text[:MOST_CHARACTERS]
    skipped = bool(events & _SKIPPED)
    _count(events, kept=int(not skipped))
    return None if skipped else cleaned


def _tidy(text: str) -> tuple[str, set[str]]:
    """Return the text with its white space and control characters cleaned, and what happened."""
    lines = _LINE_BREAK.sub("\n", text)
    printable = _CONTROL.sub("", lines)
    tidy = re.sub(" ?\n ?", "\n", _BLANKS.sub(" ", printable))
    tidy = re.sub("\n{3,}", "\n\n", tidy).strip(_ASCII_SPACE)
    events = {"control_characters"} if printable != lines else set()
    return tidy, events | _unfit(text, tidy)


def _unfit(text: str, tidy: str) -> set[str]:
    """Return why a text is skipped, if it is."""
    if 10 * text.count("\ufffd") > len(text):
        return {"not_text"}
    return set() if tidy else {"empty"}


def _count(events: Iterable[str], *, kept: int) -> None:
    """Count a document or pair, the pieces kept of it, and what happened to it."""
    with _lock:
        _counts.update(["documents", *events])
        _counts["kept"] += kept
