"""Change the settings of modules deep inside a network, through their factories."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn

Change = Callable[[functools.partial], Mapping[str, Any]]


def change_settings(module: nn.Module, kind: type, change: Change) -> nn.Module:
    """Return the network with changed settings of all its modules of one class.

    Searches the factories in the fields of `module`, and recursively tuples of factories and the
    factories' keywords.

    Args:
        kind: the class.
        change: a function from the factory of such a module to the settings to replace.

    Returns:
        A copy of the network; the network itself if nothing changes.
    """
    fields = {field.name: getattr(module, field.name) for field in dataclasses.fields(module)}
    changed = {
        name: new
        for name, old in fields.items()
        if (new := change_factories(old, kind, change)) is not old
    }
    return module.clone(**changed) if changed else module


def change_factories(value: Any, kind: type, change: Change) -> Any:
    """Change a factory or a tuple of factories, see `change_settings`.

    Values of other types, and factories without a module of the class, are returned unchanged.
    """
    if isinstance(value, tuple):
        parts = [change_factories(part, kind, change) for part in value]
        same = all(new is old for new, old in zip(parts, value, strict=True))
        return value if same else tuple(parts)
    if not isinstance(value, functools.partial):
        return value
    keywords = {name: change_factories(part, kind, change) for name, part in value.keywords.items()}
    if isinstance(value.func, type) and issubclass(value.func, kind):
        keywords |= change(value)
    if keywords.keys() == value.keywords.keys() and all(
        value.keywords[name] is part for name, part in keywords.items()
    ):
        return value
    return functools.partial(value.func, *value.args, **keywords)
