"""Models of T5X from its source, by one of its gin files, for benchmarks beside T5X.

It runs in an environment with Flax, seqio and gin. T5X imports two packages that a training step
does not use, airio (data) and jestimator (an optimizer): empty modules stand in for them. Nothing
else of T5X is replaced.
"""

import os
import pathlib
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

_NOT_NEEDED = ("airio", "airio.core", "jestimator", "jestimator.amos", "jestimator.amos_helper")


class _EmptyModule(types.ModuleType):
    """A module whose names are its submodules or empty classes, for annotations."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}", type(name, (), {}))


def build(
    gin_file: str,
    *,
    imports: Sequence[tuple[str, str]],
    bindings: Mapping[str, Any],
    sources: Sequence[str],
) -> Any:
    """Return the model of a gin file, without dropout.

    Args:
        gin_file: its path in one of the sources.
        imports: (module, name) of what the bindings name.
        bindings: {name: value in gin's notation}, over the file's.
        sources: folders with T5X and what else is imported.

    Raises:
        ValueError: no source has the gin file.
    """
    sys.path += sources
    for name in _NOT_NEEDED:
        sys.modules[name] = _EmptyModule(name)
    import gin

    @gin.configurable
    def row_model(model: Any = gin.REQUIRED) -> Any:
        return model

    lines = [
        "from __gin__ import dynamic_registration",
        *(f"from {module} import {name}" for module, name in imports),
        f"include '{_found(gin_file, sources)}'",
        "DROPOUT_RATE = 0.0",
        *(f"{name} = {value}" for name, value in bindings.items()),
    ]
    gin.parse_config("\n".join(lines))
    gin.parse_config("row_model.model = %MODEL")
    return row_model()


def _found(gin_file: str, sources: Sequence[str]) -> str:
    """Return the path of a gin file, from whose source it includes others."""
    for source in sources:
        if pathlib.Path(source, gin_file).is_file():
            os.chdir(source)  # gin looks there first
            return gin_file
    raise ValueError(f"{gin_file} is in none of {', '.join(sources)}")
