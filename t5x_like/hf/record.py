"""The record of one system: how Hugging Face stores its weights and settings."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from t5x_like.hf.weight_map import WeightMap

Settings = Mapping[str, Any]


class FromConfig(Protocol):
    """Turns a config.json into the settings of the system's `build`."""

    def __call__(self, config: Settings, *, names: Collection[str]) -> dict[str, Any]:
        """The settings for `config`, in a folder whose tensors have these names.

        Raises:
            ValueError: a setting is missing, or has a value that the system does not support.
        """


class ToConfig(Protocol):
    """Turns the settings of the system's `build` into a config.json."""

    def __call__(self, config: Settings, /) -> dict[str, Any]:
        """The config.json with which Hugging Face builds the same network.

        Raises:
            ValueError: Hugging Face has no such network.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class HuggingFaceFormat:
    """How Hugging Face stores the models of one system.

    Attributes:
        system: its name in t5x_like.systems.
        weights: our parameters -> tensors, in the notation of `weight_map`.
        from_config: see `FromConfig`.
        to_config: see `ToConfig`.
        model_types: what `model_type` is in the config.json of its folders. Empty for a system that
            Hugging Face does not have, and whose weights are stored as another system's.
        also_reads: model types of another system whose folders can be read as this one on request.
        class_prefix: the beginning of the names of Hugging Face's classes: "Bert", where the end
            names the head. Empty for a system without heads.
        aliases: other names of tensors in old or headless folders, and of copies -> the name in
            `weights`; one `*` stands for the same text on both sides.
        unused: tensors that folders contain and the network does not need.
        exported_as: heads that Hugging Face does not have -> the head that they are saved as.
        not_exported: networks at the top of the parameters that are not saved, such as a teacher.
    """

    system: str
    weights: WeightMap
    from_config: FromConfig
    to_config: ToConfig
    model_types: tuple[str, ...] = ()
    also_reads: tuple[str, ...] = ()
    class_prefix: str = ""
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unused: tuple[str, ...] = ()
    exported_as: Mapping[str, str] = dataclasses.field(default_factory=dict)
    not_exported: tuple[str, ...] = ()
