"""Choosing by name, with the nearest valid name where there is none."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


def hint(name: str, allowed: Iterable[str]) -> str:
    """The tail of an error message: the nearest allowed name, and all of them."""
    allowed = sorted(str(one) for one in allowed)
    near = difflib.get_close_matches(str(name), allowed, n=1, cutoff=0.5)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    return f"{guess} Allowed: {', '.join(allowed)}"


def choose(setting: str, name: str, table: Mapping[str, T]) -> T:
    """Returns `table[name]`.

    Raises:
        ValueError: the name is not there; the message has the setting, the nearest name and all.
    """
    if name in table:
        return table[name]
    raise ValueError(f"{setting}={name!r} does not exist.{hint(name, table)}")
