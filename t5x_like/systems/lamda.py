"""LaMDA, its network: Thoppilan et al. 2022, "LaMDA: Language Models for Dialog Applications"."""

import dataclasses

import flax.linen as nn

from t5x_like.systems import t5
from t5x_like.systems.system import AttentionConfig, DropoutConfig, System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LamdaConfig(DropoutConfig, AttentionConfig):
    """The settings of a LaMDA."""

    vocab_size: int = 32_000
    layers: int
    d_model: int
    d_ff: int
    heads: int
    head_width: int = 128
    dropout: float = 0.0
    dropout_broadcast: bool = True


def _size(layers: int, d_model: int, heads: int) -> LamdaConfig:
    return LamdaConfig(layers=layers, d_model=d_model, d_ff=8 * d_model, heads=heads)


# Table 27; the paper gives d_ff and the head width only for the largest model (section 3).
SIZES: dict[str, LamdaConfig] = {
    "2b": _size(10, 2560, 40),
    "8b": _size(16, 4096, 64),
    "137b": _size(64, 8192, 128),
}

loss = t5.loss


def build(config: LamdaConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 3).

    It is decoder-only, with T5's relative position bias and gated GELU. Details that the paper does
    not give are T5's, too: RMSNorm before each sublayer, no biases, and the initialization.
    """
    return t5.build(
        config.to(
            t5.T5Config,
            architecture="decoder",
            encoder_layers=0,
            decoder_layers=config.layers,
            d_kv=config.head_width,
            feed_forward="gated_gelu",
            tied_head=True,
        )
    )


SYSTEM = System(
    name="lamda",
    sizes=SIZES,
    build=build,
    older_defaults={"dropout_broadcast": True},
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
)
