"""GPT-3: Brown et al. 2020, "Language Models are Few-Shot Learners"."""

import dataclasses
import functools

import flax.linen as nn

from t5x_like.losses import autoregressive
from t5x_like.nn.stack import LayerGroup, Stack
from t5x_like.systems import gpt2
from t5x_like.systems.system import System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Gpt3Config(gpt2.Gpt2Config):
    """The settings of a GPT-3."""

    positions: int = 2048
    head_width: int
    window: int = 256
    dropout: float = 0.0


def _size(layers: int, d_model: int, heads: int, head_width: int) -> Gpt3Config:
    return Gpt3Config(
        layers=layers,
        d_model=d_model,
        d_ff=4 * d_model,
        heads=heads,
        head_width=head_width,
    )


# Table 2.1, in which heads times head width of xl and 13b is not the model's width.
SIZES: dict[str, Gpt3Config] = {
    "small": _size(12, 768, 12, 64),
    "medium": _size(24, 1024, 16, 64),
    "large": _size(24, 1536, 16, 96),
    "xl": _size(24, 2048, 24, 128),
    "2_7b": _size(32, 2560, 32, 80),
    "6_7b": _size(32, 4096, 32, 128),
    "13b": _size(40, 5140, 40, 128),
    "175b": _size(96, 12288, 96, 128),
}

loss = autoregressive.loss


def build(config: Gpt3Config) -> nn.Module:
    """Build GPT-2's network, with banded attention in layers 1, 3, ... (section 2.1).

    Raises:
        ValueError: the number of layers is odd, or the window is below 1.
    """
    if config.layers % 2 or config.window < 1:
        raise ValueError(
            f"model.layers={config.layers} must be even, and model.window={config.window} "
            "1 or more: dense layers alternate with banded ones"
        )
    make_block = functools.partial(gpt2.block, config, head_width=config.head_width)
    make_stack = functools.partial(
        Stack,
        make_block=functools.partial(
            LayerGroup, make_blocks=(make_block(), make_block(window=config.window))
        ),
        layers=config.layers // 2,
        compute=config.compute,
    )
    return gpt2.network(config, make_stack=make_stack)


SYSTEM = System(
    name="gpt3",
    sizes=SIZES,
    build=build,
    later={"dropout_broadcast": True},
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
)
