"""PaLM: Chowdhery et al. 2022, "PaLM: Scaling Language Modeling with Pathways"."""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn

from t5x_like.losses import autoregressive
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import Rotary
from t5x_like.nn.blocks import ParallelBlock
from t5x_like.nn.embeddings import TiedHead, TokenEmbed
from t5x_like.nn.linear import GLU, LayerNorm
from t5x_like.nn.networks import Decoder, Tower
from t5x_like.nn.stack import Stack
from t5x_like.systems.system import AttentionConfig, DropoutConfig, Ends, System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PalmConfig(DropoutConfig, AttentionConfig):
    """The settings of a PaLM."""

    vocab_size: int = 256_000
    layers: int
    d_model: int
    d_ff: int
    heads: int
    head_width: int = 256
    eos_id: Ends = 2
    dropout: float = 0.0  # in pretraining; 0.1 in fine-tuning
    dropout_broadcast: bool = True


def _size(layers: int, d_model: int, heads: int) -> PalmConfig:
    return PalmConfig(layers=layers, d_model=d_model, d_ff=4 * d_model, heads=heads)


# Table 1.
SIZES: dict[str, PalmConfig] = {
    "8b": _size(32, 4096, 16),
    "62b": _size(64, 8192, 32),
    "540b": _size(118, 18432, 48),
}

# A kernel with n inputs has the standard deviation n^-0.5 (section 5, "Weight initialization").
FAN_IN = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
NORM = functools.partial(LayerNorm, use_bias=False)
loss = autoregressive.loss


def build(config: PalmConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 2)."""
    make_norm = functools.partial(NORM, compute=config.compute)
    return Decoder(
        make_embedding=functools.partial(
            TokenEmbed,
            vocab_size=config.vocab_size,
            features=config.d_model,
            compute=config.compute,
        ),
        make_decoder=functools.partial(
            Tower,
            make_stack=functools.partial(
                Stack,
                make_block=_block(config, make_norm=make_norm),
                layers=config.layers,
                compute=config.compute,
            ),
            make_norm=make_norm,
            compute=config.compute,
        ),
        # The embeddings have standard deviation 1, so that unscaled logits would have D^0.5.
        make_head=functools.partial(TiedHead, scale=config.d_model**-0.5),
    )


def _block(config: PalmConfig, *, make_norm: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    return functools.partial(
        ParallelBlock,
        make_norm=make_norm,
        make_self_attention=functools.partial(
            Attention,
            heads=config.heads,
            kv_heads=1,
            width=config.head_width,
            position=Rotary(),
            query_init=FAN_IN,
            kernel_init=FAN_IN,
            out_init=FAN_IN,
            compute=config.compute,
        ),
        make_feed_forward=functools.partial(
            GLU,
            hidden=config.d_ff,
            activation=nn.silu,
            wi_init=FAN_IN,
            wo_init=FAN_IN,
            drop_hidden=True,
            compute=config.compute,
        ),
        compute=config.compute,
    )


SYSTEM = System(
    name="palm",
    sizes=SIZES,
    build=build,
    older_defaults={"dropout_broadcast": True},
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
    generation={"eos_token_id": "eos_id"},
)
