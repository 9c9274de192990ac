"""GPT-3: Brown et al. 2020, "Language Models are Few-Shot Learners"."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from t5x_like import language_modeling
from t5x_like.models.attention import Attention, select_core
from t5x_like.models.blocks import PreNormBlock
from t5x_like.models.embeddings import TiedHead, TokenEmbed
from t5x_like.models.feed_forward import MLP
from t5x_like.models.layer_group import LayerGroup
from t5x_like.models.norms import LayerNorm
from t5x_like.models.positions import Entrance, LearnedPositions
from t5x_like.models.stack import Stack
from t5x_like.models.transformer import Decoder, Tower


def _size(layers: int, d_model: int, heads: int, head_width: int) -> dict[str, Any]:
    return {
        "vocab_size": 50257,
        "positions": 2048,
        "layers": layers,
        "d_model": d_model,
        "d_ff": 4 * d_model,
        "heads": heads,
        "head_width": head_width,
        "window": 256,
        "dropout": 0.0,
        "attention": "auto",
        "dtype": "float32",
        "loop": "scan",
        "remat": "none",
        "embedding_lookup": "gather",
    }


# Table 2.1 as it stands. Of xl and 13b the heads together are not as wide as the model.
SIZES: dict[str, dict[str, Any]] = {
    "small": _size(12, 768, 12, 64),
    "medium": _size(24, 1024, 16, 64),
    "large": _size(24, 1536, 16, 96),
    "xl": _size(24, 2048, 24, 128),
    "2_7b": _size(32, 2560, 32, 80),
    "6_7b": _size(32, 4096, 32, 128),
    "13b": _size(40, 5140, 40, 128),
    "175b": _size(96, 12288, 96, 128),
}

NORMAL = nn.initializers.normal
NORM = functools.partial(LayerNorm, epsilon=1e-5)
loss = language_modeling.loss


def build(config: Mapping[str, Any]) -> nn.Module:
    """The network of a config with the keys of SIZES (section 2.1): layers 0, 2, ... see it all.

    Raises:
        ValueError: layers that do not alternate in pairs, or no window for every other one.
    """
    if config["layers"] % 2 or config["window"] < 1:
        raise ValueError(
            f"model.layers={config['layers']} and model.window={config['window']}: dense layers "
            "alternate with banded ones, so layers must be even and the window 1 or more"
        )
    dtype = jnp.dtype(config["dtype"])
    pair = functools.partial(
        LayerGroup, make_blocks=(_block(config, None), _block(config, config["window"]))
    )
    tower = functools.partial(
        Tower,
        make_entrance=functools.partial(Entrance, make_positions=_positions(config)),
        make_stack=functools.partial(
            Stack,
            make_block=pair,
            layers=config["layers"] // 2,
            loop=config["loop"],
            remat=config["remat"],
        ),
        make_norm=functools.partial(NORM, dtype=dtype),
        dropout=config["dropout"],
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


def _positions(config: Mapping[str, Any]) -> Callable[..., nn.Module]:
    return functools.partial(
        LearnedPositions,
        length=config["positions"],
        features=config["d_model"],
        embedding_init=NORMAL(0.01),
        dtype=jnp.dtype(config["dtype"]),
    )


def _block(config: Mapping[str, Any], window: int | None) -> Callable[..., nn.Module]:
    """GPT-2's, with a band of `window` keys before each query, or all of them."""
    dtype = jnp.dtype(config["dtype"])
    # What adds to the residual path is drawn smaller, as 2N of them add up.
    residual = NORMAL(0.02 * (2 * config["layers"]) ** -0.5)
    return functools.partial(
        PreNormBlock,
        make_norm=functools.partial(NORM, dtype=dtype),
        make_self_attention=functools.partial(
            Attention,
            heads=config["heads"],
            width=config["head_width"],
            window=window,
            core=select_core(config["attention"], dtype=dtype, dropout=config["dropout"]),
            dropout=config["dropout"],
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
        dropout=config["dropout"],
    )
