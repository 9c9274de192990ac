"""GPT-2: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"."""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn

from t5x_like.losses import autoregressive
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.blocks import PreNormBlock
from t5x_like.nn.embeddings import AddPositions, LearnedPositions, TiedHead, TokenEmbed
from t5x_like.nn.linear import MLP
from t5x_like.nn.networks import Decoder, Tower
from t5x_like.nn.norms import LayerNorm
from t5x_like.nn.stack import Stack
from t5x_like.systems.system import AttentionConfig, DropoutConfig, System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Gpt2Config(DropoutConfig, AttentionConfig):
    """The settings of a GPT-2."""

    vocab_size: int = 50257
    positions: int = 1024
    layers: int
    d_model: int
    d_ff: int
    heads: int


def _size(layers: int, d_model: int, heads: int) -> Gpt2Config:
    return Gpt2Config(layers=layers, d_model=d_model, d_ff=4 * d_model, heads=heads)


# The sizes of table 2, under the names of the released models. The paper's parameter counts leave
# some parameters out.
SIZES: dict[str, Gpt2Config] = {
    "small": _size(12, 768, 12),
    "medium": _size(24, 1024, 16),
    "large": _size(36, 1280, 20),
    "xl": _size(48, 1600, 25),
}

NORMAL = nn.initializers.normal
NORM = functools.partial(LayerNorm, epsilon=1e-5)
loss = autoregressive.loss


def build(config: Gpt2Config) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 2.3)."""
    make_stack = functools.partial(
        Stack,
        make_block=block(config, head_width=config.d_model // config.heads),
        layers=config.layers,
        compute=config.compute,
    )
    return network(config, make_stack=make_stack)


def network(config: Gpt2Config, *, make_stack: Callable[..., nn.Module]) -> nn.Module:
    """Return a language model with learned positions, whose layers `make_stack` makes."""
    tower = functools.partial(
        Tower,
        make_entrance=functools.partial(
            AddPositions,
            make_positions=functools.partial(
                LearnedPositions,
                length=config.positions,
                features=config.d_model,
                embedding_init=NORMAL(0.01),
                compute=config.compute,
            ),
        ),
        make_stack=make_stack,
        make_norm=functools.partial(NORM, compute=config.compute),
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


def block(
    config: Gpt2Config, *, head_width: int, window: int | None = None
) -> Callable[..., nn.Module]:
    """Return a factory of a layer, with causal attention to all or to the last `window` tokens."""
    # The kernels of sublayer outputs have a smaller initialization, since the residual stream is
    # the sum of 2N outputs (section 2.3).
    residual = NORMAL(0.02 * (2 * config.layers) ** -0.5)
    return functools.partial(
        PreNormBlock,
        make_norm=functools.partial(NORM, compute=config.compute),
        make_self_attention=functools.partial(
            Attention,
            heads=config.heads,
            width=head_width,
            window=window,
            use_bias=True,
            query_init=NORMAL(0.02),
            kernel_init=NORMAL(0.02),
            out_init=residual,
            compute=config.compute,
        ),
        make_feed_forward=functools.partial(
            MLP,
            hidden=config.d_ff,
            activation=functools.partial(nn.gelu, approximate=True),
            use_bias=True,
            wi_init=NORMAL(0.02),
            wo_init=residual,
            compute=config.compute,
        ),
        compute=config.compute,
    )


SYSTEM = System(
    name="gpt2",
    sizes=SIZES,
    build=build,
    later={"dropout_broadcast": True},
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
)
