"""Gopher: Rae et al. 2021, "Scaling Language Models: Methods, Analysis & Insights"."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from t5x_like.losses import autoregressive
from t5x_like.models.attention.selection import select_core
from t5x_like.models.attention.transformer_xl import TransformerXLAttention
from t5x_like.models.blocks.residual import PreNormBlock
from t5x_like.models.blocks.stack import Stack
from t5x_like.models.embeddings.token_embeddings import TiedHead, TokenEmbed
from t5x_like.models.feed_forward.mlp import MLP
from t5x_like.models.networks.decoder import Decoder
from t5x_like.models.networks.tower import Tower
from t5x_like.models.norms import RMSNorm
from t5x_like.systems.system import System, Task


def size(layers: int, d_model: int, *, heads: int, head_width: int) -> dict[str, Any]:
    """The settings of `build` for a row of the paper's table, where d_ff is 4 d_model."""
    return {
        "vocab_size": 32_000,
        "layers": layers,
        "d_model": d_model,
        "d_ff": 4 * d_model,
        "heads": heads,
        "head_width": head_width,
        "attention": "auto",
        "dtype": "float32",
        "loop": "auto",
        "remat": "none",
        "embedding_lookup": "gather",
    }


# Table 1.
SIZES: dict[str, dict[str, Any]] = {
    "44m": size(8, 512, heads=16, head_width=32),
    "117m": size(12, 768, heads=12, head_width=64),
    "417m": size(12, 1536, heads=12, head_width=128),
    "1.4b": size(24, 2048, heads=16, head_width=128),
    "7.1b": size(32, 4096, heads=32, head_width=128),
    "280b": size(80, 16384, heads=128, head_width=128),
}

NORMAL = nn.initializers.normal
loss = autoregressive.loss


def build(config: Mapping[str, Any]) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 2.1).

    It is GPT-2's with RMSNorm, and with Transformer-XL's relative positions.
    """
    dtype = jnp.dtype(config["dtype"])
    tower = functools.partial(
        Tower,
        make_stack=functools.partial(
            Stack,
            make_block=_block(config),
            layers=config["layers"],
            loop=config["loop"],
            remat=config["remat"],
        ),
        make_norm=functools.partial(RMSNorm, dtype=dtype),
    )
    return Decoder(
        make_embedding=functools.partial(
            TokenEmbed,
            vocab_size=config["vocab_size"],
            features=config["d_model"],
            lookup=config["embedding_lookup"],
            embedding_init=NORMAL(0.02),
            dtype=dtype,
        ),
        make_decoder=tower,
        make_head=TiedHead,
    )


def _block(config: Mapping[str, Any]) -> Callable[..., nn.Module]:
    dtype = jnp.dtype(config["dtype"])
    # As in GPT-2, outputs of sublayers are initialized smaller, since 2N of them are summed.
    residual = NORMAL(0.02 * (2 * config["layers"]) ** -0.5)
    return functools.partial(
        PreNormBlock,
        make_norm=functools.partial(RMSNorm, dtype=dtype),
        make_self_attention=functools.partial(
            TransformerXLAttention,
            features=config["d_model"],
            heads=config["heads"],
            width=config["head_width"],
            core=select_core(config["attention"]),
            use_bias=True,
            query_init=NORMAL(0.02),
            kernel_init=NORMAL(0.02),
            out_init=residual,
            dtype=dtype,
        ),
        make_feed_forward=functools.partial(
            MLP,
            hidden=config["d_ff"],
            activation=functools.partial(nn.gelu, approximate=True),
            use_bias=True,
            wi_init=NORMAL(0.02),
            wo_init=residual,
            dtype=dtype,
        ),
    )


SYSTEM = System(
    name="gopher",
    sizes=SIZES,
    build=build,
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
)
