"""Settings of a config.json: the values that are allowed, and the names that they have here."""

import dataclasses
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

REQUIRED: Any = object()  # the default of a setting that a config.json must have


@dataclasses.dataclass(frozen=True)
class Allowed:
    """The allowed values of a setting.

    Attributes:
        description: what an error message calls them: "an integer from 1 to 9".
        accepts: whether a value, of any type that JSON has, is one of them.
    """

    description: str
    accepts: Callable[[Any], bool]

    def check(self, name: str, value: Any, *, where: str = "config.json") -> None:
        """Check the value of a setting.

        Raises:
            ValueError: it is not allowed.
        """
        if not self.accepts(value):
            raise ValueError(
                f"{where} has {name}={reprlib.repr(value)}; allowed: {self.description}"
            )


def integers(least: int, most: int) -> Allowed:
    """The integers from `least` to `most`, written without a point; `true` is not 1."""
    return Allowed(
        f"an integer from {least} to {most}",
        lambda value: type(value) is int and least <= value <= most,
    )


def numbers(least: float, most: float) -> Allowed:
    """The numbers from `least` to `most`, integers or not."""
    return Allowed(
        f"a number from {least} to {most}",
        lambda value: type(value) in (int, float) and least <= value <= most,
    )


def one_of(*values: Any) -> Allowed:
    """These values. Numbers are compared as numbers: 1 is 1.0, and is `true`."""
    return Allowed(", ".join(map(repr, values)), lambda value: value in values)


def or_null(allowed: Allowed) -> Allowed:
    """The allowed values, or null."""
    return Allowed(
        f"{allowed.description}, or null", lambda value: value is None or allowed.accepts(value)
    )


def or_list(allowed: Allowed) -> Allowed:
    """An allowed value, or a list of them that is not empty."""
    return Allowed(
        f"{allowed.description}, or a list of such",
        lambda value: (
            bool(value) and all(map(allowed.accepts, value))
            if isinstance(value, list)
            else allowed.accepts(value)
        ),
    )


_MOST = 2**31 - 1
COUNT = integers(1, _MOST)
LAYERS = integers(1, 10_000)
TOKEN = integers(0, _MOST)
RATE = numbers(0, 1)
POSITIVE = numbers(1e-30, 1e30)
FLAG = Allowed("true or false", lambda value: isinstance(value, bool))
TEXT = Allowed("a string", lambda value: isinstance(value, str))
OBJECT = Allowed("an object", lambda value: isinstance(value, dict))


@dataclasses.dataclass(frozen=True)
class Setting:
    """A setting of a config.json.

    Attributes:
        name: the setting of the system's `build` with the same value. Empty: there is none, and
            the functions of the record read and write it.
        allowed: its values.
        default: the value where a config.json lacks it.
    """

    name: str
    allowed: Allowed
    default: Any = REQUIRED


class Noted(dict[str, Any]):
    """The settings of a config.json, which note the names of those that are read.

    Attributes:
        seen: the names.
    """

    def __init__(self, config: Mapping[str, Any], *, seen: Iterable[str] = ()):
        super().__init__(config)
        self.seen = set(seen)

    def __getitem__(self, name: str) -> Any:
        self.seen.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.seen.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The setting, or the default."""
        self.seen.add(name)
        return super().get(name, default)


def rename(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A config.json with the usual names of its settings.

    Args:
        names: other name -> usual name.

    Raises:
        ValueError: a setting has one value under one name and another under the other.
    """
    renamed = dict(config)
    for other, name in names.items():
        if other in config:
            value = renamed.setdefault(name, config[other])
            one_of(value).check(f"{other}, another name of {name},", config[other])
    return renamed


def read_settings(config: Mapping[str, Any], settings: Mapping[str, Setting]) -> dict[str, Any]:
    """The settings of a config.json by our names; those that are null everywhere are left out.

    Where several have one name here, the first that is not null counts.

    Raises:
        ValueError: a setting is missing, or has a value that is not allowed.
    """
    ours: dict[str, Any] = {}
    for key, setting in settings.items():
        if key in config:
            setting.allowed.check(key, config[key])
        elif setting.default is REQUIRED:
            raise ValueError(f"config.json has no {key}")
        value = config.get(key, setting.default)
        if setting.name and value is not None:
            ours.setdefault(setting.name, value)
    return ours


def check_multiple(config: Mapping[str, Any], key: str, divisor: str) -> None:
    """Check that a setting of a config.json is a multiple of another.

    Raises:
        ValueError: it is not; the message has both.
    """
    if config[key] % config[divisor]:
        raise ValueError(
            f"config.json has {key}={config[key]}; allowed: a multiple of {divisor}, which is "
            f"{config[divisor]}"
        )


def write_settings(config: Mapping[str, Any], settings: Mapping[str, Setting]) -> dict[str, Any]:
    """The inverse of `read_settings`."""
    return {key: config[setting.name] for key, setting in settings.items() if setting.name}
