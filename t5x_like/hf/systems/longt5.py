"""LongT5 in Hugging Face's folders: T5's tensors, except for the encoder's attention."""

import dataclasses
from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import COUNT, Setting, integers, one_of
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.systems import t5
from t5x_like.hf.weight_map import WeightMap
from t5x_like.systems.longt5 import SIZES

_TYPES = {"local": "local", "transient-global": "transient_global"}
_NAMES = {"local": "LocalSelfAttention", "transient_global": "TransientGlobalSelfAttention"}


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    found = t5.derive_settings(config, settings, names)
    return {**found, "encoder_attention": _TYPES[config.get("encoder_attention_type", "local")]}


def _derive_config(settings: Settings) -> dict[str, Any]:
    (theirs,) = (name for name, ours in _TYPES.items() if ours == settings["encoder_attention"])
    return {**t5.derive_config(settings), "encoder_attention_type": theirs}


def _weights(name: str) -> WeightMap:
    """Return the weight map; `name` is Hugging Face's name of the encoder's self-attention."""
    first = f"encoder.block.0.layer.0.{name}"
    there = "encoder.block.{layer}.layer.0"
    return {
        **t5.FORMAT.weights,
        **t5.attention_weights("encoder/layers/{layer}/self_attention", f"{there}.{name}"),
        "encoder/relative_position_bias/embedding": f"{first}.relative_attention_bias.weight",
        "encoder/extra/relative_position_bias/embedding": (
            f"{first}.global_relative_attention_bias.weight"
        ),
        "encoder/layers/{layer}/self_attention/global_norm/scale": (
            f"{there}.{name}.global_input_layer_norm.weight"
        ),
    }


def _variant(settings: Settings) -> HuggingFaceFormat:
    """Return the format with the names of the network's encoder attention."""
    weights = _weights(_NAMES[settings["encoder_attention"]])
    return dataclasses.replace(FORMAT, weights=weights, variant=None)


FORMAT = dataclasses.replace(
    t5.FORMAT,
    system="longt5",
    model_types={"longt5": "LongT5"},
    defaults=SIZES["local_base"],
    settings={
        **t5.FORMAT.settings,
        "encoder_attention_type": Setting("", one_of(*_TYPES), default="local"),
        "local_radius": Setting("local_radius", integers(1, 2**20), default=127),
        "global_block_size": Setting("global_block", COUNT, default=16),
    },
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights=_weights(_NAMES["local"]),
    unused=(),
    variant=_variant,
)
