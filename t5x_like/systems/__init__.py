"""Paper to model: one short file per system."""

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from t5x_like.names import choose
from t5x_like.systems.system import System

_PARTS = ("system", "encoder_tasks")  # files that are no system


def names() -> list[str]:
    """The names of all systems."""
    return [info.name for info in pkgutil.iter_modules(__path__) if info.name not in _PARTS]


def find(name: str) -> System:
    """The system of this name.

    Raises:
        ValueError: there is none; the message has the nearest name.
    """
    choose("system", name, dict.fromkeys(names()))
    return importlib.import_module(f"{__name__}.{name}").SYSTEM


def complete(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a config's `model`, with those that its run is too old to have.

    Raises:
        ValueError: there is no such system.
    """
    return {**find(name).later, **config}


def build(name: str, config: Mapping[str, Any]) -> nn.Module:
    """The network of a system with the settings of a config's `model`.

    A setting that the run is too old to have (`System.later`) has the value of that time.

    Raises:
        ValueError: a setting that the system does not have, or lacks, or a bad value.
    """
    system, config = find(name), complete(name, config)
    known = next(iter(system.sizes.values()))
    for setting in config:
        choose(f"model setting of {name}", setting, known)
    if missing := [setting for setting in known if setting not in config]:
        raise ValueError(
            f"model lacks {', '.join(missing)}: start from one of the SIZES of systems/{name}.py"
        )
    return system.build(config)
