"""The systems: one file per paper, with its sizes, its network and its tasks."""

import functools
import importlib
import importlib.util
import pathlib
import pkgutil
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import flax.linen as nn

from t5x_like.names import choose, hint
from t5x_like.systems.system import System

_PARTS = ("system", "encoder_tasks")  # files that are not systems


def names() -> list[str]:
    """The names of all systems."""
    return [info.name for info in pkgutil.iter_modules(__path__) if info.name not in _PARTS]


def find(name: str) -> System:
    """Find a system by its name, or in a Python file of the user.

    Args:
        name: a module of t5x_like.systems, such as "bert"; or a file with a `System` named SYSTEM,
            such as "my_models/memory.py", or "my_models/memory.py:SMALL" for another name in it.

    Raises:
        ValueError: there is no such system; the message contains the nearest name.
    """
    path, _, value = name.partition(":")
    if path.endswith(".py"):
        return _in_file(pathlib.Path(path).expanduser(), value or "SYSTEM")
    choose("system", name, dict.fromkeys(names()))
    return importlib.import_module(f"{__name__}.{name}").SYSTEM


def complete(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Add the settings that a run's config lacks because they are newer than the run.

    Raises:
        ValueError: there is no such system.
    """
    return {**find(name).later, **config}


def _in_file(file: pathlib.Path, name: str) -> System:
    """The system with this name in a Python file."""
    if not file.is_file():
        beside = [str(other) for other in file.parent.glob("*.py")]
        raise ValueError(f"system={str(file)!r} does not exist.{hint(str(file), beside)}")
    values = vars(_import(file.resolve()))
    systems = {key: value for key, value in values.items() if isinstance(value, System)}
    return choose(f"system in {file}", name, systems)


@functools.cache
def _import(file: pathlib.Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"user_systems.{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None  # the name ends in .py
    imported = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, imported)
    spec.loader.exec_module(imported)
    return imported


def build(name: str, config: Mapping[str, Any]) -> nn.Module:
    """Build the network of a system with the settings of a config's `model`.

    Settings that are newer than the config's run get the values of `System.later`.

    Raises:
        ValueError: the system or a setting does not exist, or a setting is missing or bad.
    """
    system, config = find(name), complete(name, config)
    known = next(iter(system.sizes.values()))
    for setting in config:
        choose(f"model setting of {name}", setting, known)
    if missing := [setting for setting in known if setting not in config]:
        raise ValueError(
            f"model lacks {', '.join(missing)}: start from one of the sizes of system {name!r}, "
            f"{', '.join(system.sizes)}"
        )
    return system.build(config)
