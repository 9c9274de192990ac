"""Mixtral in Hugging Face's folders: a LLaMA with experts."""

import dataclasses
from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import COUNT, Setting
from t5x_like.hf.record import Settings
from t5x_like.hf.systems import llama
from t5x_like.systems.mixtral import SIZES

_HERE, _THERE = "decoder/layers/{layer}/feed_forward", "model.layers.{layer}.block_sparse_moe"
_EXPERT = f"{_THERE}.experts.{{expert}}"


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    absent = {"rope_theta": 1_000_000.0, "num_key_value_heads": 8}
    found = llama.derive_settings({**absent, **config}, settings, names)
    return {**found, "window": config.get("sliding_window") or 0}


def _derive_config(settings: Settings) -> dict[str, Any]:
    return {**llama.derive_config(settings), "model_type": "mixtral"}


FORMAT = dataclasses.replace(
    llama.FORMAT,
    system="mixtral",
    model_types={"mixtral": "Mixtral"},
    defaults=SIZES["8x7b"],
    settings={
        **llama.FORMAT.settings,
        "num_local_experts": Setting("experts", COUNT, default=8),
        "num_experts_per_tok": Setting("chosen", COUNT, default=2),
    },
    other_names={"num_experts": "num_local_experts"},
    fixed={"hidden_act": "silu", "attention_dropout": 0.0, "router_jitter_noise": 0.0},
    exported_only={"dispatch": "dropless"},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights={
        **{
            name: line
            for name, line in llama.FORMAT.weights.items()
            if "/feed_forward/" not in name
        },
        f"{_HERE}/router/kernel": (f"{_THERE}.gate.weight", "E D -> D E"),
        f"{_HERE}/experts/wi_0/kernel": (f"{_EXPERT}.w1.weight", "F D -> D F"),
        f"{_HERE}/experts/wi_1/kernel": (f"{_EXPERT}.w3.weight", "F D -> D F"),
        f"{_HERE}/experts/wo/kernel": (f"{_EXPERT}.w2.weight", "D F -> F D"),
    },
)
