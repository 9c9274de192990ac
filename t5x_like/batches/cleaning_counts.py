"""Count what cleaning changes in documents.

The counters count for this process, include what was read ahead, and are not part of a data
position: they are for information only.
"""

import collections
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
