"""Qwen2 in Hugging Face's folders: a LLaMA with biases of query, key and value."""

import dataclasses
from collections.abc import Collection
from typing import Any

from t5x_like.hf.record import Settings
from t5x_like.hf.systems import llama
from t5x_like.systems.qwen2 import SIZES

_HERE, _THERE = "decoder/layers/{layer}/self_attention", "model.layers.{layer}.self_attn"


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    found = llama.derive_settings(config, settings, names)
    ids = {"bos_id": config.get("bos_token_id"), "eos_id": config.get("eos_token_id")}
    return {**found, **ids}


FORMAT = dataclasses.replace(
    llama.FORMAT,
    system="qwen2",
    model_types={"qwen2": "Qwen2"},
    defaults=SIZES["7b"],
    # `use_sliding_window` gives only some layers a window; no released model has it.
    fixed={"hidden_act": "silu", "attention_dropout": 0.0, "use_sliding_window": False},
    exported_only={"window": 0},
    derive_settings=_derive_settings,
    weights={
        **llama.FORMAT.weights,
        **{
            f"{_HERE}/{name}/bias": (f"{_THERE}.{name[0]}_proj.bias", "(H K) -> H K")
            for name in ("query", "key", "value")
        },
    },
)
