"""LongT5: Guo et al. 2021, "LongT5: Efficient Text-To-Text Transformer for Long Sequences".

T5 v1.1 whose encoder attends to near tokens (arXiv:2112.07916, section 3.1.1), and in its
transient-global variant also to sums of blocks of tokens (section 3.1.2).
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from t5x_like.losses import autoregressive
from t5x_like.models.attention.cores import dense_core
from t5x_like.models.attention.transient_global import (
    GlobalTokens,
    LocalAttention,
    TransientGlobalAttention,
)
from t5x_like.models.norms import RMSNorm
from t5x_like.names import choose
from t5x_like.systems import t5
from t5x_like.systems.system import System, Task

ARCHITECTURES = ("encoder_decoder", "encoder")


def _size(name: str, encoder_attention: str) -> dict[str, Any]:
    own = {"encoder_attention": encoder_attention, "local_radius": 127, "global_block": 16}
    return t5.SIZES[name] | own


# Section 4.1: the widths and depths are T5 v1.1's. These are the released models.
SIZES: dict[str, dict[str, Any]] = {
    "local_base": _size("base", "local"),
    "local_large": _size("large", "local"),
    "tglobal_base": _size("base", "transient_global"),
    "tglobal_large": _size("large", "transient_global"),
    "tglobal_xl": _size("xl", "transient_global"),
}


def build(config: Mapping[str, Any]) -> nn.Module:
    """Build the network of a config with the keys of SIZES.

    Args:
        config: as for `t5.build`, with an `architecture` out of ARCHITECTURES. The
            `encoder_attention` is `local` or `transient_global`; `local_radius` is the distance of
            the farthest token that a token attends to (the paper's r), `global_block` the number of
            tokens of a global token (the paper's k). `attention` is of the decoder.

    Raises:
        ValueError: no such architecture, attention or feed-forward, or a block of no tokens.
    """
    choose("model.architecture", config["architecture"], dict.fromkeys(ARCHITECTURES))
    if config["global_block"] < 1:
        raise ValueError(f"model.global_block={config['global_block']} must be 1 token or more")
    make_feed_forwards = (t5.feed_forward(config),)
    attention, tables = choose(
        "model.encoder_attention",
        config["encoder_attention"],
        {
            "local": (LocalAttention, {}),
            "transient_global": _transient_global(config),
        },
    )
    settings = t5.attention_settings(config) | {"core": dense_core}
    encoder = t5.tower(
        config,
        layers=config["encoder_layers"],
        make_feed_forwards=make_feed_forwards,
        make_self_attention=functools.partial(
            attention, **settings, block=config["local_radius"] + 1
        ),
        # The attention computes the biases that it needs, which are few.
        make_bias=t5.relative_position_bias(config, in_core=True),
        **tables,
    )
    return t5.network(config, make_feed_forwards=make_feed_forwards, make_encoder=encoder)


def _transient_global(config: Mapping[str, Any]) -> tuple[Callable[..., nn.Module], dict[str, Any]]:
    """The attention, and the factory of the table that its layers share."""
    norm = functools.partial(RMSNorm, dtype=jnp.dtype(config["dtype"]))
    tokens = functools.partial(
        GlobalTokens,
        block=config["global_block"],
        make_bias=t5.relative_position_bias(config, in_core=False),
    )
    attention = functools.partial(TransientGlobalAttention, make_norm=norm)
    return attention, {"make_extra": tokens}


SYSTEM = System(
    name="longt5",
    sizes=SIZES,
    build=build,
    structure=(*t5.SYSTEM.structure, "encoder_attention"),
    new_parameters=t5.SYSTEM.new_parameters,
    tasks={"": Task(loss=autoregressive.loss, prediction="text")},
)
