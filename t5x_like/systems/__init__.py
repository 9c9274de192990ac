"""The systems: one file per paper, with its sizes, network, tasks and Hugging Face format."""

import functools
import importlib
import math
import pathlib
import pkgutil
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn

from t5x_like.hf.record import HuggingFaceFormat
from t5x_like.names import check_type, choose, hint, import_file, type_hints
from t5x_like.systems.system import AttentionConfig, System

_PARTS = ("system", "policy_optimization")  # files that are not systems
_OF_NETWORKS = ("sides", "generates", "example_batch")  # attributes that every network declares

# The settings of the computation, which a network shares with the networks inside it.
COMPUTATION = tuple(name for name in AttentionConfig.__dataclass_fields__ if name != "vocab_size")

# Settings whose names end like this must be 1 or more, unless their published value is 0.
_SIZES = (
    *("vocab_size", "layers", "heads", "experts", "d_model", "d_ff", "d_kv", "width"),
    *("types", "groups", "span"),
)
_POSITIVE = ("theta",)
_SIGNED = ("shift",)  # settings that may be below 0
_DTYPES = ("float32", "bfloat16")


def names() -> list[str]:
    """Return the names of all systems."""
    return [info.name for info in pkgutil.iter_modules(__path__) if info.name not in _PARTS]


def find(name: str) -> System:
    """Find a system by its name, or in a Python file of the user.

    Args:
        name: a module of t5x_like.systems, such as "bert"; or a file that defines a `System` named
            SYSTEM, such as "my_models/memory.py"; or "my_models/memory.py:SMALL" for a `System`
            with another name.

    Raises:
        ValueError: the system is unknown; the message contains the nearest name.
    """
    path, _, value = name.partition(":")
    if path.endswith(".py"):
        return _in_file(pathlib.Path(path).expanduser(), value or "SYSTEM")
    choose("system", name, dict.fromkeys(names()))
    return importlib.import_module(f"{__name__}.{name}").SYSTEM


@functools.cache
def hugging_face_formats() -> dict[str, HuggingFaceFormat]:
    """Return {system: its `HUGGING_FACE`}, for all systems whose weights Hugging Face can store."""
    modules = (importlib.import_module(f"{__name__}.{name}") for name in names())
    formats = (getattr(module, "HUGGING_FACE", None) for module in modules)
    return {record.system: record for record in formats if record is not None}


def hugging_face_format(system: str) -> HuggingFaceFormat:
    """Return the format of a system.

    Raises:
        ValueError: Hugging Face has no class for this system's network.
    """
    if system not in hugging_face_formats():
        raise ValueError(
            f"system={system!r}: Hugging Face has no class for it, so its models are saved as "
            "t5x_like checkpoints only (convert --format=t5x_like)"
        )
    return hugging_face_formats()[system]


def hugging_face_readers(model_type: str, *, architecture: str = "") -> list[str]:
    """Return the systems that a folder can be read as, the default first.

    Args:
        model_type: the `model_type` in its config.json.
        architecture: the name of the class in its config.json.

    Raises:
        ValueError: no system supports this `model_type`.
    """
    formats = hugging_face_formats().values()
    readers = [record for record in formats if model_type in record.model_types]
    if not readers:
        known = sorted({each for record in formats for each in record.model_types})
        raise ValueError(
            f"model_type={model_type!r} is not supported; supported are {', '.join(known)}"
        )

    def rank(record: HuggingFaceFormat) -> tuple[bool, bool]:
        return architecture not in record.classes, record.on_request

    return [record.system for record in sorted(readers, key=rank)]


def complete(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Add the settings that a run's config lacks because they are newer than the run.

    Raises:
        ValueError: the system is unknown.
    """
    return {**find(name).older_defaults, **config}


def policy_of(name: str, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the policy's system and its settings, for a system with a `policy`.

    Raises:
        ValueError: one of the two systems does not exist.
    """
    settings = dict(config[find(name).policy])
    policy = settings.pop("system")
    # The settings of the whole network override the policy's settings of the same name.
    settings |= {setting: value for setting, value in config.items() if setting in settings}
    return policy, complete(policy, settings)


def inside(
    config: Mapping[str, Any], part: str, *, needs: tuple[str, ...] = ("vocab_size",)
) -> dict[str, Any]:
    """Return the settings of the network `part` inside another, including its `system` if any.

    They are `config[part]`, with the settings COMPUTATION of `config` and without `folder`, which
    names the folder to read the parameters from.

    Args:
        needs: settings that the part must have.

    Raises:
        ValueError: the part lacks one of these settings.
    """
    for name in needs:
        if name not in config[part]:
            raise ValueError(
                f"model.{part} lacks {name!r}: take its settings from one of its sizes"
            )
    settings = {**config[part], **{name: config[name] for name in COMPUTATION}}
    settings.pop("folder", None)
    return settings


def _in_file(file: pathlib.Path, name: str) -> System:
    """Return the system with this name in a Python file."""
    if not file.is_file():
        beside = [str(other) for other in file.parent.glob("*.py")]
        raise ValueError(f"system={str(file)!r} does not exist.{hint(str(file), beside)}")
    values = vars(_import(file.resolve()))
    systems = {key: value for key, value in values.items() if isinstance(value, System)}
    if name not in systems:
        raise ValueError(f"system={str(file)!r} has no System named {name!r}.{hint(name, systems)}")
    return systems[name]


@functools.cache
def _import(file: pathlib.Path) -> types.ModuleType:
    return import_file("system", file, name=f"user_systems.{file.stem}")


def _parts(value: Any, kind: Any) -> Sequence[Any]:
    """Return the numbers of a setting that may also have several or none; else its value."""
    kinds = typing.get_args(kind)
    if value is None and types.NoneType in kinds:
        return ()
    return value if type(value) in (list, tuple) and Sequence[int] in kinds else (value,)


def _check_value(setting: str, value: Any, published: Any) -> None:
    """Check the type and range of a setting of `model`.

    Args:
        published: the value of the setting in one of the system's sizes, which has the right type.

    Raises:
        ValueError: the value has another type, or is out of range.
    """
    allowed = ""
    if type(published) is bool and type(value) is not bool:
        allowed = "True or False"
    elif type(published) is int:
        least = 1 if published and setting.endswith(_SIZES) else 0
        if type(value) is not int or value < least:
            allowed = f"an integer, {least} or more"
    elif type(published) is float:
        lowest = -math.inf if setting in _SIGNED else 0.0
        if type(value) not in (int, float) or not lowest <= value < math.inf:
            allowed = "a number" if setting in _SIGNED else "a number, 0 or more"
        elif setting.endswith(_POSITIVE) and value == 0:
            allowed = "a number above 0"
        elif setting.endswith("dropout") and value >= 1:
            allowed = "a number below 1"
    elif setting == "dtype" and value not in _DTYPES:
        allowed = " or ".join(_DTYPES)
    if allowed:
        raise ValueError(f"model.{setting}={value!r} must be {allowed}")


def settings(name: str, config: Mapping[str, Any]) -> Any:
    """Check a config's `model` and return it as an object of the class of the system's sizes.

    Settings that are newer than the config's run get the values of `System.older_defaults`.

    Raises:
        ValueError: the system or a setting does not exist, a setting is missing, has the wrong type
            or is out of range, or the system's sizes have no `vocab_size`.
    """
    system, config = find(name), complete(name, config)
    known = next(iter(system.sizes.values()))
    kinds = type_hints(type(known))
    if "vocab_size" not in known:
        raise ValueError(
            f"the sizes of system {name!r} lack 'vocab_size', which is compared with the "
            f"vocabulary of the data: add it to `System.sizes`, which has {', '.join(known)}"
        )
    for setting, value in config.items():
        if setting not in known:
            raise ValueError(f"model.{setting} is not a setting of {name}.{hint(setting, known)}")
        kind = kinds.get(setting, Any)
        for part in _parts(value, kind):
            _check_value(setting, part, known[setting])
        check_type(f"model.{setting}", value, kind)
    if missing := [setting for setting in known if setting not in config]:
        raise ValueError(
            f"model lacks {', '.join(missing)}: start from one of the sizes of system {name!r}, "
            f"{', '.join(system.sizes)}"
        )
    return type(known)(**config)


def build(name: str, config: Mapping[str, Any]) -> nn.Module:
    """Build the network of a system with the settings of a config's `model`.

    Raises:
        ValueError: see `settings`; or the settings contradict each other, or the network lacks an
            attribute that every network declares.
    """
    network = find(name).build(settings(name, config))
    if lacking := [part for part in _OF_NETWORKS if not hasattr(network, part)]:
        raise ValueError(
            f"the network of system {name!r} lacks {', '.join(lacking)}: see `build` of "
            "t5x_like.systems.system.System"
        )
    return network
