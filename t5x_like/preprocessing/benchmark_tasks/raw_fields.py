"""Read and check the fields of a benchmark's raw row, and fill templates with them."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t5x_like.names import hint

Raw = Mapping[str, Any]  # a row in the schema of its file
Change = Callable[[Raw], Raw]  # a raw row with changed or added fields

_FIELD = re.compile(r"\{([\w.]+)\}")


def value(raw: Raw, path: str) -> Any:
    """Return a field of a raw row; "idx.question" is the field "question" of the field "idx".

    Raises:
        ValueError: there is no such field; the message has the nearest name.
    """
    found: Any = raw
    for name in path.split("."):
        if not isinstance(found, Mapping) or name not in found:
            there = found if isinstance(found, Mapping) else ()
            raise ValueError(f"there is no field {path!r}.{hint(name, there)}")
        found = found[name]
    return found


def text(raw: Raw, path: str) -> str:
    """Return a field that is a string.

    Raises:
        ValueError: it is not a string, or there is no such field.
    """
    found = value(raw, path)
    if not isinstance(found, str):
        raise ValueError(f"{path}={found!r:.80} must be a string.")
    return found


def number(raw: Raw, path: str) -> int:
    """Return a field that is a whole number.

    Raises:
        ValueError: it is not a whole number, or there is no such field.
    """
    found = value(raw, path)
    if not isinstance(found, int) or isinstance(found, bool):
        raise ValueError(f"{path}={found!r:.80} must be a whole number.")
    return found


def texts(raw: Raw, path: str) -> list[str]:
    """Return a field that is a list of one or more strings.

    Raises:
        ValueError: it is not such a list, it is empty, or there is no such field.
    """
    found = value(raw, path)
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError(f"{path}={found!r:.80} must be a list of strings.")
    if not found:
        raise ValueError(f"{path} is an empty list.")
    return found


def fill(template: str, raw: Raw) -> str:
    """Fill a template, "question: {question}", with the strings of a raw row.

    Raises:
        ValueError: see `text`.
    """
    return _FIELD.sub(lambda match: text(raw, match[1]), template)


def key(template: str, raw: Raw) -> str:
    """Fill a template with any fields of a raw row, such as strings and whole numbers.

    Raises:
        ValueError: see `value`.
    """
    return _FIELD.sub(lambda match: str(value(raw, match[1])), template)


def label(raw: Raw, path: str, labels: Sequence[str]) -> str:
    """Return the name of a row's label; the file has a name, a number from 0 or a boolean.

    Raises:
        ValueError: it is not a label, or is -1, which marks the rows of hidden test sets.
    """
    found = value(raw, path)
    if isinstance(found, bool):
        found = str(found)
    if isinstance(found, str) and found in labels:
        return found
    if isinstance(found, str) and found.lstrip("-").isdecimal():
        found = int(found)
    if isinstance(found, int) and 0 <= found < len(labels):
        return labels[found]
    if found in (-1, "", None):
        raise ValueError(
            f"{path}={found!r}: the row has no label, as those of hidden test sets; such rows can "
            "only be predicted (infer)"
        )
    if isinstance(found, int):
        problem = f"{path}={found} is not a label: 0 to {len(labels) - 1} are {', '.join(labels)}"
        raise ValueError(problem)
    raise ValueError(f"{path}={found!r:.80} is not a label.{hint(str(found), labels)}")
