"""Gemma in Hugging Face's folders, with the same tensors as LLaMA."""

import dataclasses
from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import COUNT, FLAG, Setting, one_of
from t5x_like.hf.record import Settings
from t5x_like.hf.systems import llama
from t5x_like.systems.gemma import SIZES

# The released folders name "gelu" but mean its tanh approximation.
_ACTIVATIONS = ("gelu_pytorch_tanh", "gelu")


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    found = llama.derive_settings({**config, "head_dim": settings["head_width"]}, settings, names)
    # Until version 5, `hidden_activation` replaced `hidden_act`.
    one_of(None, _ACTIVATIONS[0]).check("hidden_activation", config.get("hidden_activation"))
    ids = {"bos_id": config.get("bos_token_id", 2), "eos_id": config.get("eos_token_id", 1)}
    return {**found, **ids}


def _derive_config(settings: Settings) -> dict[str, Any]:
    config = llama.derive_config(settings)
    del config["sliding_window"]
    return {**config, "hidden_act": _ACTIVATIONS[0], "hidden_activation": _ACTIVATIONS[0]}


FORMAT = dataclasses.replace(
    llama.FORMAT,
    system="gemma",
    model_types={"gemma": "Gemma"},
    defaults=SIZES["7b"],
    settings={
        **llama.FORMAT.settings,
        "head_dim": Setting("head_width", COUNT, default=256),
        "tie_word_embeddings": Setting("tied_head", FLAG, default=True),
        "hidden_act": Setting("", one_of(*_ACTIVATIONS), default=_ACTIVATIONS[0]),
    },
    fixed={"attention_bias": False, "attention_dropout": 0.0},
    exported_only={"window": 0},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
)
