"""Mixtral: Jiang et al. 2024, "Mixtral of Experts" (arXiv:2401.04088).

Mistral's network, where each feed-forward is a mixture of experts.
"""

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from t5x_like.models.feed_forward import moe, routers
from t5x_like.models.norms import RMSNorm
from t5x_like.systems import llama, switch
from t5x_like.systems.system import System, Task

_EXACT = {"quantization": "none"}  # a setting of LLaMA alone: experts have no quantized products


def _size(layers: int, d_model: int, d_ff: int, heads: int, **changes: Any) -> dict[str, Any]:
    dense = llama.SIZES["mistral_7b"]
    return {name: dense[name] for name in dense if name not in _EXACT} | {
        "positions": 32_768,
        "layers": layers,
        "d_model": d_model,
        "d_ff": d_ff,
        "heads": heads,
        "head_width": d_model // heads,
        "rope_theta": 1_000_000.0,
        "window": 0,
        "experts": 8,
        "chosen": 2,
        "dispatch": "dropless",
        **changes,
    }


# Table 1, and the larger model that was released later.
SIZES: dict[str, dict[str, Any]] = {
    "8x7b": _size(32, 4096, 14_336, 32),
    "8x22b": _size(56, 6144, 16_384, 48, positions=65_536),
}


def build(config: Mapping[str, Any]) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 2).

    Raises:
        ValueError: an unknown kind of `rope_scaling`, or more chosen experts than there are.
    """
    if not 1 <= config["chosen"] <= config["experts"]:
        raise ValueError(
            f"model.chosen={config['chosen']} must be from 1 to model.experts={config['experts']}"
        )
    dtype = jnp.dtype(config["dtype"])
    make_feed_forward = functools.partial(
        moe.SparseFeedForward,
        make_router=functools.partial(
            routers.TopKRouter,
            experts=config["experts"],
            chosen=config["chosen"],
            kernel_init=llama.NORMAL,
        ),
        make_experts=functools.partial(
            moe.Experts,
            experts=config["experts"],
            hidden=config["d_ff"],
            gated=True,
            activation=nn.silu,
            wi_init=llama.NORMAL,
            wo_init=llama.NORMAL,
            dtype=dtype,
        ),
        dispatch=config["dispatch"],
    )
    return llama.network(
        config,
        make_norm=functools.partial(RMSNorm, epsilon=config["norm_epsilon"], dtype=dtype),
        make_attention=llama.attention({**config, **_EXACT}),
        make_feed_forward=make_feed_forward,
    )


SYSTEM = System(
    name="mixtral",
    sizes=SIZES,
    build=build,
    tasks={"": Task(loss=switch.loss, prediction="text")},
    generation={"eos_token_id": "eos_id"},
)
