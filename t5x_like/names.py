"""Look-ups by name, whose errors suggest the nearest valid name."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


def hint(name: str, allowed: Iterable[str]) -> str:
    """The end of an error message: the nearest allowed name, and all allowed names."""
    allowed = sorted(str(one) for one in allowed)
    near = difflib.get_close_matches(str(name), allowed, n=1, cutoff=0.5)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    return f"{guess} Allowed: {', '.join(allowed)}"


def choose(setting: str, name: str, table: Mapping[str, T]) -> T:
    """Returns `table[name]`.

    Raises:
        ValueError: the table has no such name; the message contains the setting, the nearest name
            and all allowed names.
    """
    if name in table:
        return table[name]
    raise ValueError(f"{setting}={name!r} does not exist.{hint(name, table)}")
