"""The format of one system: how Hugging Face stores its weights and settings."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from t5x_like.hf import architectures, without_effect
from t5x_like.hf.config_settings import (
    Noted,
    Setting,
    check_multiple,
    one_of,
    or_null,
    read_settings,
    rename,
    write_settings,
)
from t5x_like.hf.weight_map import WeightMap

Settings = Mapping[str, Any]


class DeriveSettings(Protocol):
    """Computes the settings for the system's `build` that config.json does not contain directly."""

    def __call__(
        self, config: Settings, settings: Settings, names: Collection[str], /
    ) -> dict[str, Any]:
        """Return the derived settings.

        Args:
            config: the config.json, whose values have been checked.
            settings: the settings that were read from it directly, and defaults for the others.
            names: the names of the folder's tensors.

        Raises:
            ValueError: the system does not support this combination of settings.
        """


class DeriveConfig(Protocol):
    """Computes the settings of config.json that the system's settings do not contain directly."""

    def __call__(self, settings: Settings, /) -> dict[str, Any]:
        """Return the derived settings of config.json.

        Raises:
            ValueError: Hugging Face has no such network.
        """


def _no_settings(config: Settings, settings: Settings, names: Collection[str], /) -> dict[str, Any]:
    del config, settings, names
    return {}


def _no_config(settings: Settings, /) -> dict[str, Any]:
    del settings
    return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class HuggingFaceFormat:
    """How Hugging Face stores the models of one system.

    Attributes:
        system: the system's name in t5x_like.systems.
        model_types: {`model_type` in config.json: prefix of the names of Hugging Face's classes},
            such as {"bert": "Bert"}. The first is written by default.
        on_request: whether the folders are read as another system unless this system is asked for,
            because Hugging Face does not have it.
        class_suffix: the end of the class's name, for a system without heads.
        other_classes: {end of another class's name: settings for the system's `build`}, such as
            {"EncoderModel": {"architecture": "encoder"}}.
        defaults: the settings for the system's `build`, for settings that config.json lacks.
        settings: {name in config.json: `Setting`}.
        other_names: {other name in config.json: usual name}, such as {"hidden_size": "dim"}.
        fixed: {name in config.json: the only supported value}; a config.json may lack them.
        multiples: {name in config.json: name of a divisor}, such as a width and the number of
            heads.
        derive_settings: see `DeriveSettings`.
        derive_config: see `DeriveConfig`.
        exported_only: {setting of the system that Hugging Face lacks: the only value with which a
            model can be saved}.
        weights: {our parameter: tensor}, in the notation of `weight_map`.
        aliases: {other name of a tensor: its name in `weights`}, for old or headless folders and
            for copies; one `*` stands for the same text on both sides.
        unused: tensors that folders may contain and the network does not need.
        exported_as: {head that Hugging Face does not have: the head that it is saved as}.
        not_exported: top-level submodules whose parameters are not saved, such as a teacher.
        classes: names of Hugging Face's classes whose folders are read as this system, though other
            systems support their model_type.
        variant: returns the format with the weights of the network with some settings, for a system
            with several networks; None if there is only one.
    """

    system: str
    model_types: Mapping[str, str]
    on_request: bool = False
    class_suffix: str = ""
    other_classes: Mapping[str, Settings] = dataclasses.field(default_factory=dict)
    defaults: Settings
    settings: Mapping[str, Setting]
    other_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fixed: Settings = dataclasses.field(default_factory=dict)
    multiples: Mapping[str, str] = dataclasses.field(default_factory=dict)
    derive_settings: DeriveSettings = _no_settings
    derive_config: DeriveConfig = _no_config
    exported_only: Settings = dataclasses.field(default_factory=dict)
    weights: WeightMap
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unused: tuple[str, ...] = ()
    exported_as: Mapping[str, str] = dataclasses.field(default_factory=dict)
    not_exported: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    variant: Callable[[Settings], "HuggingFaceFormat"] | None = None

    def of(self, settings: Settings) -> "HuggingFaceFormat":
        """Return the format of the network with some settings, see `variant`.

        Raises:
            ValueError: Hugging Face has no such network.
        """
        return self if self.variant is None else self.variant(settings)

    def from_config(self, config: Settings, *, names: Collection[str]) -> dict[str, Any]:
        """Convert a config.json to settings for the system's `build`.

        Args:
            names: the names of the folder's tensors.

        Raises:
            ValueError: a setting is missing, or has a value that is not supported.
        """
        return self._read(Noted(rename(config, self.other_names)), names=names)

    def without_effect(self, config: Settings, *, names: Collection[str]) -> dict[str, Any]:
        """Return the settings of a config.json that have no effect here, see `hf.without_effect`.

        Raises:
            ValueError: see `from_config`.
        """
        noted = Noted(rename(config, self.other_names), seen=self.other_names)
        self._read(noted, names=names)
        return without_effect.in_config(noted)

    @property
    def known(self) -> set[str]:
        """The names of the settings of config.json that have an effect."""
        return {*self.settings, *self.fixed, *self.other_names, *self.multiples}

    def _read(self, config: Noted, *, names: Collection[str]) -> dict[str, Any]:
        or_null(architectures.CLASS).check("architectures", config.get("architectures"))
        for key, value in self.fixed.items():
            one_of(value).check(key, config.get(key, value))
        settings = {**self.defaults, **read_settings(config, self.settings)}
        (name,) = config.get("architectures") or [""]
        for ending, class_settings in self.other_classes.items():
            settings |= class_settings if name.endswith(ending) else {}
        for key, divisor in self.multiples.items():
            check_multiple(config, key, divisor)
        settings |= self.derive_settings(config, settings, names)
        if "head" in settings:
            settings |= architectures.read_head(config, exported_as=self.exported_as)
        return settings

    def to_config(self, settings: Settings, *, model_type: str = "") -> dict[str, Any]:
        """Return the config.json with which Hugging Face builds the network with some settings.

        Args:
            settings: the settings of the system's `build`.
            model_type: a key of `model_types`; empty for the first.

        Raises:
            ValueError: Hugging Face has no such network.
        """
        for name, value in self.exported_only.items():
            if settings[name] != value:
                raise ValueError(
                    f"model.{name}={settings[name]!r}: Hugging Face's class supports only {value!r}"
                )
        config = {"model_type": model_type or next(iter(self.model_types))}
        config |= {**self.fixed, **write_settings(settings, self.settings)}
        config |= self.derive_config(settings)
        prefix = self.model_types[config["model_type"]]
        if "head" not in settings:
            ends = (
                end
                for end, class_settings in self.other_classes.items()
                if class_settings.items() <= settings.items()
            )
            return config | {"architectures": [prefix + next(ends, self.class_suffix)]}
        return config | architectures.write_head(
            settings, class_prefix=prefix, exported_as=self.exported_as
        )
