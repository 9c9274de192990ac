"""Paper to model: one short file per system."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import flax.linen as nn

from t5x_like import losses
from t5x_like.losses import task_losses
from t5x_like.names import choose


def names() -> list[str]:
    """The systems there are."""
    return [info.name for info in pkgutil.iter_modules(__path__)]


def find(name: str) -> ModuleType:
    """The module of a system.

    Raises:
        ValueError: there is none; the message has the nearest name.
    """
    choose("system", name, dict.fromkeys(names()))
    return importlib.import_module(f"{__name__}.{name}")


def build(name: str, config: Mapping[str, Any]) -> nn.Module:
    """The network of a system with the settings of a config's `model`.

    Raises:
        ValueError: a setting that the system does not have, or lacks, or a bad value.
    """
    system = find(name)
    known = next(iter(system.SIZES.values()))
    for setting in config:
        choose(f"model setting of {name}", setting, known)
    if missing := [setting for setting in known if setting not in config]:
        raise ValueError(
            f"model lacks {', '.join(missing)}: start from one of the SIZES of systems/{name}.py"
        )
    return system.build(config)


def loss(name: str, config: Mapping[str, Any]) -> Callable[..., losses.LossSums]:
    """The loss of a system with the settings of a config's `model`: that of its head."""
    system = find(name)
    of_heads = getattr(system, "LOSSES", task_losses.LOSSES)
    return of_heads.get(config.get("head", ""), system.loss)
