"""Gopher: Rae et al. 2021, "Scaling Language Models: Methods, Analysis & Insights"."""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn

from t5x_like.losses import autoregressive
from t5x_like.nn.blocks import PreNormBlock
from t5x_like.nn.compute import GELU_TANH
from t5x_like.nn.embeddings import TiedHead, TokenEmbed
from t5x_like.nn.linear import MLP, RMSNorm
from t5x_like.nn.networks import Decoder, Tower
from t5x_like.nn.stack import Stack
from t5x_like.systems.system import AttentionConfig, System, Task
from t5x_like.systems.transformer_xl import TransformerXLAttention


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class GopherConfig(AttentionConfig):
    """The settings of a Gopher or a Chinchilla."""

    vocab_size: int = 32_000
    layers: int
    d_model: int
    d_ff: int
    heads: int
    head_width: int


def size(layers: int, d_model: int, *, heads: int, head_width: int) -> GopherConfig:
    """Return the settings of a row of the paper's table; d_ff is always 4 d_model."""
    return GopherConfig(
        layers=layers,
        d_model=d_model,
        d_ff=4 * d_model,
        heads=heads,
        head_width=head_width,
    )


# Table 1.
SIZES: dict[str, GopherConfig] = {
    "44m": size(8, 512, heads=16, head_width=32),
    "117m": size(12, 768, heads=12, head_width=64),
    "417m": size(12, 1536, heads=12, head_width=128),
    "1.4b": size(24, 2048, heads=16, head_width=128),
    "7.1b": size(32, 4096, heads=32, head_width=128),
    "280b": size(80, 16384, heads=128, head_width=128),
}

NORMAL = nn.initializers.normal
loss = autoregressive.loss


def build(config: GopherConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 2.1).

    It is GPT-2's network with RMSNorm and Transformer-XL's relative positions.
    """
    tower = functools.partial(
        Tower,
        make_stack=functools.partial(
            Stack, make_block=_block(config), layers=config.layers, compute=config.compute
        ),
        make_norm=functools.partial(RMSNorm, compute=config.compute),
        compute=config.compute,
    )
    return Decoder(
        make_embedding=functools.partial(
            TokenEmbed,
            vocab_size=config.vocab_size,
            features=config.d_model,
            embedding_init=NORMAL(0.02),
            compute=config.compute,
        ),
        make_decoder=tower,
        make_head=TiedHead,
    )


def _block(config: GopherConfig) -> Callable[..., nn.Module]:
    # As in GPT-2, the kernels of sublayer outputs have a smaller initialization, since the residual
    # stream is the sum of 2N outputs.
    residual = NORMAL(0.02 * (2 * config.layers) ** -0.5)
    return functools.partial(
        PreNormBlock,
        make_norm=functools.partial(RMSNorm, compute=config.compute),
        make_self_attention=functools.partial(
            TransformerXLAttention,
            features=config.d_model,
            heads=config.heads,
            width=config.head_width,
            use_bias=True,
            query_init=NORMAL(0.02),
            kernel_init=NORMAL(0.02),
            out_init=residual,
            compute=config.compute,
        ),
        make_feed_forward=functools.partial(
            MLP,
            hidden=config.d_ff,
            activation=GELU_TANH,
            use_bias=True,
            wi_init=NORMAL(0.02),
            wo_init=residual,
            compute=config.compute,
        ),
        compute=config.compute,
    )


SYSTEM = System(
    name="gopher",
    sizes=SIZES,
    build=build,
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
)
