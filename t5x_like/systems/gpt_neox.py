"""GPT-NeoX: Black et al. 2022, "GPT-NeoX-20B" (arXiv:2204.06745), and Pythia, its smaller sizes.

A layer's attention and feed-forward read the same states, and rotary positions rotate a quarter of
each head.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn

from t5x_like.losses import autoregressive
from t5x_like.names import choose
from t5x_like.nn.attention.multi_head import Attention, Position
from t5x_like.nn.attention.positions import Rotary
from t5x_like.nn.blocks import PreNormBlock, TwoNormParallelBlock
from t5x_like.nn.embeddings import LinearHead, TiedHead, TokenEmbed
from t5x_like.nn.linear import MLP, Initializer
from t5x_like.nn.networks import Decoder, Tower
from t5x_like.nn.norms import LayerNorm
from t5x_like.nn.stack import Stack
from t5x_like.systems.system import AttentionConfig, System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ParallelConfig(AttentionConfig):
    """The settings that a GPT-NeoX and a GPT-J have in common."""

    positions: int = 2048  # the longest text in training; longer texts are possible
    layers: int
    d_model: int
    d_ff: int
    heads: int
    norm_epsilon: float = 1e-5
    bos_id: int = 0
    eos_id: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class GptNeoxConfig(ParallelConfig):
    """The settings of a GPT-NeoX."""

    vocab_size: int = 50_304
    rope_theta: float = 10_000.0
    rotary_share: float = 0.25
    parallel: bool = True
    activation: str = "gelu"
    tied_head: bool = False


def _size(layers: int, d_model: int, heads: int, **changes: Any) -> GptNeoxConfig:
    return GptNeoxConfig(
        layers=layers,
        d_model=d_model,
        d_ff=4 * d_model,
        heads=heads,
        **changes,
    )


# Each vocabulary is padded for the number of devices in training.
SIZES: dict[str, GptNeoxConfig] = {
    "20b": _size(44, 6144, 64, vocab_size=50_432, activation="gelu_fast"),
    # Biderman et al. 2023, "Pythia" (arXiv:2304.01373), table 1.
    "pythia_70m": _size(6, 512, 8),
    "pythia_160m": _size(12, 768, 12),
    "pythia_410m": _size(24, 1024, 16),
    "pythia_1b": _size(16, 2048, 8),
    "pythia_1_4b": _size(24, 2048, 16),
    "pythia_2_8b": _size(32, 2560, 32),
    "pythia_6_9b": _size(32, 4096, 32, vocab_size=50_432),
    "pythia_12b": _size(36, 5120, 40, vocab_size=50_688),
}

_ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "gelu": functools.partial(nn.gelu, approximate=False),
    "gelu_fast": functools.partial(nn.gelu, approximate=True),
}
loss = autoregressive.loss


def build(config: GptNeoxConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 2.1).

    Raises:
        ValueError: `activation` is unknown, or the share `rotary_share` of a head's width is
            odd, below 2, or above the width.
    """
    share, width = config.rotary_share, config.d_model // config.heads
    rotated = int(share * width)
    if rotated % 2 or not 0 < rotated <= width:
        raise ValueError(
            f"model.rotary_share={share} of heads of {width} is {rotated}, which must be even, "
            f"and from 2 to {width}"
        )
    input_init = initializers(config)[0]
    return network(
        config,
        make_block=functools.partial(
            TwoNormParallelBlock if config.parallel else PreNormBlock,
            make_norm=make_norm(config),
            make_self_attention=attention(
                config,
                position=Rotary(theta=config.rope_theta, width=rotated),
                use_bias=True,
            ),
            make_feed_forward=feed_forward(
                config, activation=choose("model.activation", config.activation, _ACTIVATIONS)
            ),
            compute=config.compute,
        ),
        make_head=(
            TiedHead if config.tied_head else functools.partial(LinearHead, kernel_init=input_init)
        ),
    )


def initializers(config: ParallelConfig) -> tuple[Initializer, Initializer]:
    """Return the initializers of kernels, and of sublayer output kernels (section 2.1.3)."""
    width, layers = config.d_model, config.layers
    return nn.initializers.normal((2 / (5 * width)) ** 0.5), nn.initializers.normal(
        2 / (layers * width**0.5)
    )


def make_norm(config: ParallelConfig) -> Callable[..., nn.Module]:
    """Return the factory of all norms."""
    return functools.partial(LayerNorm, epsilon=config.norm_epsilon, compute=config.compute)


def network(
    config: ParallelConfig,
    *,
    make_block: Callable[..., nn.Module],
    make_head: Callable[..., nn.Module],
) -> nn.Module:
    """Build a language model whose embeddings have no positions."""
    return Decoder(
        make_embedding=functools.partial(
            TokenEmbed,
            vocab_size=config.vocab_size,
            features=config.d_model,
            embedding_init=initializers(config)[0],
            compute=config.compute,
        ),
        make_decoder=functools.partial(
            Tower,
            make_stack=functools.partial(
                Stack, make_block=make_block, layers=config.layers, compute=config.compute
            ),
            make_norm=make_norm(config),
            compute=config.compute,
        ),
        make_head=make_head,
    )


def attention(
    config: ParallelConfig, *, position: Position, use_bias: bool
) -> Callable[..., nn.Module]:
    """Return a factory of the self-attention of a layer."""
    input_init, output_init = initializers(config)
    return functools.partial(
        Attention,
        heads=config.heads,
        width=config.d_model // config.heads,
        position=position,
        use_bias=use_bias,
        query_init=input_init,
        kernel_init=input_init,
        out_init=output_init,
        compute=config.compute,
    )


def feed_forward(
    config: ParallelConfig, *, activation: Callable[..., Any]
) -> Callable[..., nn.Module]:
    """Return a factory of the feed-forward sublayer."""
    input_init, output_init = initializers(config)
    return functools.partial(
        MLP,
        hidden=config.d_ff,
        activation=activation,
        use_bias=True,
        wi_init=input_init,
        wo_init=output_init,
        compute=config.compute,
    )


SYSTEM = System(
    name="gpt_neox",
    sizes=SIZES,
    build=build,
    tasks={"": Task(loss=loss, prediction="text")},
    generation={"eos_token_id": "eos_id"},
)
