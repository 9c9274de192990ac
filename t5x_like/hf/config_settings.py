"""Settings of a config.json: their allowed values, and their names here."""

import dataclasses
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

REQUIRED: Any = object()  # the default of a setting that a config.json must have


@dataclasses.dataclass(frozen=True)
class Allowed:
    """The allowed values of a setting.

    Attributes:
        description: the values in the words of an error message: "an integer from 1 to 9".
        accepts: returns whether a value, of any type in JSON, is allowed.
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
    """Allow the integers from `least` to `most`, but not 1.0 or `true`."""
    return Allowed(
        f"an integer from {least} to {most}",
        lambda value: type(value) is int and least <= value <= most,
    )


def numbers(least: float, most: float) -> Allowed:
    """Allow the numbers from `least` to `most`, integers or not."""
    return Allowed(
        f"a number from {least} to {most}",
        lambda value: type(value) in (int, float) and least <= value <= most,
    )


def one_of(*values: Any) -> Allowed:
    """Allow these values. They are compared as in Python: 1 equals 1.0 and `true`."""
    return Allowed(", ".join(map(repr, values)), lambda value: value in values)


def or_null(allowed: Allowed) -> Allowed:
    """Allow the same values, or null."""
    return Allowed(
        f"{allowed.description}, or null", lambda value: value is None or allowed.accepts(value)
    )


def or_list(allowed: Allowed) -> Allowed:
    """Allow the same values, or a list of such values that is not empty."""
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
        name: the setting of the system's `build` with the same value. If it is "", the format's
            functions `derive_settings` and `derive_config` handle the setting.
        allowed: its allowed values.
        default: the value if a config.json lacks it.
    """

    name: str
    allowed: Allowed
    default: Any = REQUIRED


class Noted(dict[str, Any]):
    """The settings of a config.json; the dict notes the names that are read.

    Attributes:
        seen: the names that have been read.
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
        """Return a setting, or the default."""
        self.seen.add(name)
        return super().get(name, default)


def rename(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Add the usual names of settings that a config.json has under other names.

    Args:
        names: {other name: usual name}.

    Raises:
        ValueError: a setting has different values under its two names.
    """
    renamed = dict(config)
    for other, name in names.items():
        if other in config:
            value = renamed.setdefault(name, config[other])
            one_of(value).check(f"{other}, another name of {name},", config[other])
    return renamed


def read_settings(config: Mapping[str, Any], settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the settings of a config.json by our names, without settings that are null.

    If several settings have the same name here, the first that is not null counts.

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
        ValueError: it is not; the message has both values.
    """
    if config[key] % config[divisor]:
        raise ValueError(
            f"config.json has {key}={config[key]}; allowed: a multiple of {divisor}, which is "
            f"{config[divisor]}"
        )


def write_settings(config: Mapping[str, Any], settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the settings by their names in config.json: the inverse of `read_settings`."""
    return {key: config[setting.name] for key, setting in settings.items() if setting.name}
