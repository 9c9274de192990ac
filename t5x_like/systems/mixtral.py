"""Mixtral: Jiang et al. 2024, "Mixtral of Experts" (arXiv:2401.04088).

Mistral's network, in which each feed-forward sublayer is a mixture of experts.
"""

import dataclasses
import functools
from collections.abc import Collection
from typing import Any

import flax.linen as nn

from t5x_like.hf.config_settings import COUNT, Setting
from t5x_like.hf.record import Settings
from t5x_like.nn import moe
from t5x_like.nn.linear import RMSNorm
from t5x_like.systems import llama, switch
from t5x_like.systems.system import System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MixtralConfig(llama.UnquantizedLlamaConfig):
    """The settings of a Mixtral, without `quantization`, which experts do not have."""

    positions: int = 32_768  # the longest text in training; longer texts are possible
    kv_heads: int = 8
    norm_epsilon: float = 1e-5
    rope_theta: float = 1_000_000.0
    experts: int = 8
    chosen: int = 2
    dispatch: str = "dropless"


def _size(layers: int, d_model: int, d_ff: int, heads: int, **changes: Any) -> MixtralConfig:
    return MixtralConfig(
        layers=layers,
        d_model=d_model,
        d_ff=d_ff,
        heads=heads,
        head_width=d_model // heads,
        **changes,
    )


# Table 1, and the larger model that was released later.
SIZES: dict[str, MixtralConfig] = {
    "8x7b": _size(32, 4096, 14_336, 32),
    "8x22b": _size(56, 6144, 16_384, 48, positions=65_536),
}


def build(config: MixtralConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 2).

    Raises:
        ValueError: the kind of `rope_scaling` is unknown, or `chosen` is not from 1 to `experts`.
    """
    if not 1 <= config.chosen <= config.experts:
        raise ValueError(
            f"model.chosen={config.chosen} must be from 1 to model.experts={config.experts}"
        )
    make_feed_forward = functools.partial(
        moe.SparseFeedForward,
        make_router=functools.partial(
            moe.TopKRouter,
            experts=config.experts,
            chosen=config.chosen,
            kernel_init=llama.NORMAL,
        ),
        make_experts=functools.partial(
            moe.Experts,
            experts=config.experts,
            hidden=config.d_ff,
            gated=True,
            activation=nn.silu,
            wi_init=llama.NORMAL,
            wo_init=llama.NORMAL,
            compute=config.compute,
        ),
        dispatch=config.dispatch,
    )
    dense = config.to(llama.LlamaConfig)
    return llama.network(
        dense,
        make_norm=functools.partial(RMSNorm, epsilon=config.norm_epsilon, compute=config.compute),
        make_attention=llama.attention(dense),
        make_feed_forward=make_feed_forward,
    )


SYSTEM = System(
    name="mixtral",
    sizes=SIZES,
    build=build,
    tasks={"": Task(loss=switch.loss, prediction="text")},
    generation={"eos_token_id": "eos_id"},
)


# Mixtral in Hugging Face's folders: a LLaMA with experts.

_HERE, _THERE = "decoder/layers/{layer}/feed_forward", "model.layers.{layer}.block_sparse_moe"
_EXPERT = f"{_THERE}.experts.{{expert}}"


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    absent = {"rope_theta": 1_000_000.0, "num_key_value_heads": 8}
    derived = llama.derive_settings({**absent, **config}, settings, names)
    return {**derived, "window": config.get("sliding_window") or 0}


def _derive_config(settings: Settings) -> dict[str, Any]:
    return {**llama.derive_config(settings), "model_type": "mixtral"}


HUGGING_FACE = dataclasses.replace(
    llama.HUGGING_FACE,
    system="mixtral",
    model_types={"mixtral": "Mixtral"},
    defaults=SIZES["8x7b"],
    settings={
        **llama.HUGGING_FACE.settings,
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
            for name, line in llama.HUGGING_FACE.weights.items()
            if "/feed_forward/" not in name
        },
        f"{_HERE}/router/kernel": (f"{_THERE}.gate.weight", "E D -> D E"),
        f"{_HERE}/experts/wi_0/kernel": (f"{_EXPERT}.w1.weight", "F D -> D F"),
        f"{_HERE}/experts/wi_1/kernel": (f"{_EXPERT}.w3.weight", "F D -> D F"),
        f"{_HERE}/experts/wo/kernel": (f"{_EXPERT}.w2.weight", "D F -> F D"),
    },
)
