"""Gemma: Gemma Team 2024, "Gemma: Open Models Based on Gemini Research ..." (arXiv:2403.08295).

LLaMA's network with wide heads, GELU as the activation of the gate, scaled embeddings to which the
output layer is tied, and norms whose gain is a parameter plus 1.
"""

import dataclasses
import functools
from collections.abc import Collection
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.hf.config_settings import COUNT, FLAG, Setting, one_of
from t5x_like.hf.record import Settings
from t5x_like.losses import autoregressive
from t5x_like.nn.compute import GELU_TANH, Compute
from t5x_like.nn.embeddings import ScaledInputs
from t5x_like.nn.linear import normalize
from t5x_like.systems import llama
from t5x_like.systems.system import System, Task


def _size(layers: int, d_model: int, d_ff: int, heads: int, kv_heads: int) -> llama.LlamaConfig:
    return llama.LlamaConfig(
        vocab_size=256_000,
        positions=8192,
        layers=layers,
        d_model=d_model,
        d_ff=d_ff,
        heads=heads,
        kv_heads=kv_heads,
        head_width=256,
        tied_head=True,
        bos_id=2,
        eos_id=1,
    )


# Table 1. Its feed-forward widths count both halves of the gated layer; these count one half.
SIZES: dict[str, llama.LlamaConfig] = {
    "2b": _size(18, 2048, 16_384, 8, 1),
    "7b": _size(28, 3072, 24_576, 16, 16),
}


class OffsetRMSNorm(nn.Module):
    """RMSNorm with the gain 1 + `scale`, which is 1 at initialization."""

    epsilon: float = 1e-6
    compute: Compute = Compute()

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        """Return the normalized states, which are computed in float32."""
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("norm",))
        gain = 1 + self.param("scale", zeros, x.shape[-1:]).astype(jnp.float32)
        return normalize(x, gain, epsilon=self.epsilon).astype(self.compute.dtype)


def build(config: llama.LlamaConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 2).

    Raises:
        ValueError: the kind of `rope_scaling` is unknown.
    """
    return llama.network(
        config,
        make_norm=functools.partial(
            OffsetRMSNorm, epsilon=config.norm_epsilon, compute=config.compute
        ),
        make_attention=llama.attention(config),
        make_feed_forward=llama.feed_forward(config, activation=GELU_TANH),
        make_entrance=functools.partial(ScaledInputs, scale=config.d_model**0.5),
    )


SYSTEM = System(
    name="gemma",
    sizes=SIZES,
    build=build,
    older_defaults=llama.SYSTEM.older_defaults,
    tasks={"": Task(loss=autoregressive.loss, prediction="text")},
    generation={"eos_token_id": "eos_id"},
)


# Gemma in Hugging Face's folders, with the same tensors as LLaMA.

# The released folders name "gelu" but mean its tanh approximation.
_ACTIVATIONS = ("gelu_pytorch_tanh", "gelu")


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    derived = llama.derive_settings({**config, "head_dim": settings["head_width"]}, settings, names)
    # Until version 5, `hidden_activation` replaced `hidden_act`.
    one_of(None, _ACTIVATIONS[0]).check("hidden_activation", config.get("hidden_activation"))
    ids = {"bos_id": config.get("bos_token_id", 2), "eos_id": config.get("eos_token_id", 1)}
    return {**derived, **ids}


def _derive_config(settings: Settings) -> dict[str, Any]:
    config = llama.derive_config(settings)
    del config["sliding_window"]
    return {**config, "hidden_act": _ACTIVATIONS[0], "hidden_activation": _ACTIVATIONS[0]}


HUGGING_FACE = dataclasses.replace(
    llama.HUGGING_FACE,
    system="gemma",
    model_types={"gemma": "Gemma"},
    defaults=SIZES["7b"],
    settings={
        **llama.HUGGING_FACE.settings,
        "head_dim": Setting("head_width", COUNT, default=256),
        "tie_word_embeddings": Setting("tied_head", FLAG, default=True),
        "hidden_act": Setting("", one_of(*_ACTIVATIONS), default=_ACTIVATIONS[0]),
    },
    fixed={"attention_bias": False, "attention_dropout": 0.0},
    exported_only={"window": 0},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
)
