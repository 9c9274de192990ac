"""Qwen2: Yang et al. 2024, "Qwen2 Technical Report" (arXiv:2407.10671).

LLaMA's network with biases for queries, keys and values. Qwen 2.5's dense models have the same
network.
"""

import dataclasses
import functools
from collections.abc import Collection
from typing import Any

import flax.linen as nn

from t5x_like.hf.record import Settings
from t5x_like.losses import autoregressive
from t5x_like.nn.linear import RMSNorm
from t5x_like.systems import llama
from t5x_like.systems.system import System, Task


def _size(
    layers: int,
    d_model: int,
    d_ff: int,
    heads: int,
    kv_heads: int,
    *,
    vocab_size: int = 151_936,
    tied_head: bool = False,
) -> llama.LlamaConfig:
    return llama.LlamaConfig(
        vocab_size=vocab_size,
        positions=32_768,
        layers=layers,
        d_model=d_model,
        d_ff=d_ff,
        heads=heads,
        kv_heads=kv_heads,
        head_width=d_model // heads,
        rope_theta=1_000_000.0,
        tied_head=tied_head,
        bos_id=None,
        eos_id=151_643,
    )


# Table 1; the embedding tables of the larger models have more unused rows.
SIZES: dict[str, llama.LlamaConfig] = {
    "0_5b": _size(24, 896, 4864, 14, 2, tied_head=True),
    "1_5b": _size(28, 1536, 8960, 12, 2, tied_head=True),
    "7b": _size(28, 3584, 18_944, 28, 4, vocab_size=152_064),
    "72b": _size(80, 8192, 29_568, 64, 8, vocab_size=152_064),
}


def build(config: llama.LlamaConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 2.2.1).

    Raises:
        ValueError: the kind of `rope_scaling` is unknown.
    """
    make_norm = functools.partial(RMSNorm, epsilon=config.norm_epsilon, compute=config.compute)
    make_attention = llama.attention(config, use_bias=("query", "key", "value"))
    return llama.network(
        config,
        make_norm=make_norm,
        make_attention=make_attention,
        make_feed_forward=llama.feed_forward(config),
    )


SYSTEM = System(
    name="qwen2",
    sizes=SIZES,
    build=build,
    older_defaults=llama.SYSTEM.older_defaults,
    tasks={"": Task(loss=autoregressive.loss, prediction="text")},
    generation={"eos_token_id": "eos_id"},
)


# Qwen2 in Hugging Face's folders: a LLaMA with biases of query, key and value.

_HERE, _THERE = "decoder/layers/{layer}/self_attention", "model.layers.{layer}.self_attn"


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    derived = llama.derive_settings(config, settings, names)
    ids = {"bos_id": config.get("bos_token_id"), "eos_id": config.get("eos_token_id")}
    return {**derived, **ids}


HUGGING_FACE = dataclasses.replace(
    llama.HUGGING_FACE,
    system="qwen2",
    model_types={"qwen2": "Qwen2"},
    defaults=SIZES["7b"],
    # `use_sliding_window` gives only some layers a window; no released model has it.
    fixed={"hidden_act": "silu", "attention_dropout": 0.0, "use_sliding_window": False},
    exported_only={"window": 0},
    derive_settings=_derive_settings,
    weights={
        **llama.HUGGING_FACE.weights,
        **{
            f"{_HERE}/{name}/bias": (f"{_THERE}.{name[0]}_proj.bias", "(H K) -> H K")
            for name in ("query", "key", "value")
        },
    },
)
