"""GPT-J: Wang and Komatsuzaki 2021, "GPT-J-6B", trained with their mesh-transformer-jax."""

import dataclasses
import functools

import flax.linen as nn

from t5x_like.losses import autoregressive
from t5x_like.nn.attention.positions import InterleavedRotary
from t5x_like.nn.blocks import ParallelBlock
from t5x_like.nn.embeddings import LinearHead
from t5x_like.systems import gpt_neox
from t5x_like.systems.system import System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class GptJConfig(gpt_neox.ParallelConfig):
    """The settings of a GPT-J."""

    vocab_size: int = 50_400
    layers: int = 28
    d_model: int = 4096
    d_ff: int = 16_384
    heads: int = 16
    rotary_width: int = 64
    bos_id: int = 50_256
    eos_id: int = 50_256


SIZES: dict[str, GptJConfig] = {"6b": GptJConfig()}


def build(config: GptJConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES: GPT-NeoX's with one norm per layer.

    Raises:
        ValueError: `rotary_width` is odd, below 2, or wider than a head.
    """
    rotated, width = config.rotary_width, config.d_model // config.heads
    if rotated % 2 or not 0 < rotated <= width:
        raise ValueError(f"model.rotary_width={rotated} must be even, and from 2 to {width}")
    make_block = functools.partial(
        ParallelBlock,
        make_norm=gpt_neox.make_norm(config),
        make_self_attention=gpt_neox.attention(
            config, position=InterleavedRotary(width=rotated), use_bias=False
        ),
        make_feed_forward=gpt_neox.feed_forward(
            config, activation=functools.partial(nn.gelu, approximate=True)
        ),
        compute=config.compute,
    )
    make_head = functools.partial(
        LinearHead, use_bias=True, kernel_init=gpt_neox.initializers(config)[0]
    )
    return gpt_neox.network(config, make_block=make_block, make_head=make_head)


SYSTEM = System(
    name="gpt_j",
    sizes=SIZES,
    build=build,
    tasks={"": Task(loss=autoregressive.loss, prediction="text")},
    generation={"eos_token_id": "eos_id"},
)
