"""LaMDA: Thoppilan et al. 2022, "LaMDA: Language Models for Dialog Applications"; pretraining."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from t5x_like import language_modeling
from t5x_like.models.attention import Attention, select_core
from t5x_like.models.blocks import PreNormBlock
from t5x_like.models.embeddings import TiedHead, TokenEmbed
from t5x_like.models.feed_forward import GLU
from t5x_like.models.norms import RMSNorm
from t5x_like.models.positions import RelativePositionBias
from t5x_like.models.stack import Stack
from t5x_like.models.transformer import Decoder, Tower


def _size(layers: int, d_model: int, heads: int) -> dict[str, Any]:
    return {
        "vocab_size": 32_000,
        "layers": layers,
        "d_model": d_model,
        "d_ff": 8 * d_model,
        "heads": heads,
        "head_width": 128,
        "dropout": 0.0,
        "attention": "auto",
        "dtype": "float32",
        "loop": "scan",
        "remat": "none",
        "embedding_lookup": "gather",
    }


# Table 27; d_ff and the heads' width are told of the largest alone (section 3).
SIZES: dict[str, dict[str, Any]] = {
    "2b": _size(10, 2560, 40),
    "8b": _size(16, 4096, 64),
    "137b": _size(64, 8192, 128),
}

NORMAL = nn.initializers.normal
loss = language_modeling.loss


def build(config: Mapping[str, Any]) -> nn.Module:
    """The network of a config with the keys of SIZES (section 3).

    Decoder-only, with T5's position bias and gated GELU; all else that the paper does not tell is
    T5's too: RMSNorm before each sublayer, no biases, and how the parameters are drawn.
    """
    dtype, d_model = jnp.dtype(config["dtype"]), config["d_model"]
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
        make_bias=functools.partial(
            RelativePositionBias,
            heads=config["heads"],
            embedding_init=NORMAL(d_model**-0.5),
            dtype=dtype,
        ),
        dropout=config["dropout"],
    )
    return Decoder(
        make_embedding=functools.partial(
            TokenEmbed,
            vocab_size=config["vocab_size"],
            features=d_model,
            lookup=config["embedding_lookup"],
            dtype=dtype,
        ),
        make_decoder=tower,
        make_head=functools.partial(TiedHead, scale=d_model**-0.5),
    )


def _block(config: Mapping[str, Any]) -> Callable[..., nn.Module]:
    dtype, d_model, width = jnp.dtype(config["dtype"]), config["d_model"], config["head_width"]
    return functools.partial(
        PreNormBlock,
        make_norm=functools.partial(RMSNorm, dtype=dtype),
        # The scores are not divided by sqrt(K); the query's initial size makes up for it.
        make_self_attention=functools.partial(
            Attention,
            heads=config["heads"],
            width=width,
            scale=1.0,
            core=select_core(config["attention"], dtype=dtype, dropout=config["dropout"]),
            query_init=NORMAL((d_model * width) ** -0.5),
            kernel_init=NORMAL(d_model**-0.5),
            out_init=NORMAL((config["heads"] * width) ** -0.5),
            dropout=config["dropout"],
            dtype=dtype,
        ),
        make_feed_forward=functools.partial(
            GLU,
            hidden=config["d_ff"],
            wi_init=NORMAL(d_model**-0.5),
            wo_init=NORMAL(config["d_ff"] ** -0.5),
            dropout=config["dropout"],
            dtype=dtype,
        ),
        dropout=config["dropout"],
    )
