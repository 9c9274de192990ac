"""MASS: Song et al. 2019, "MASS: Masked Sequence to Sequence ..." (arXiv:1905.02450)."""

import dataclasses
import functools

import flax.linen as nn

from t5x_like.losses import autoregressive
from t5x_like.nn.embeddings import TiedHead
from t5x_like.nn.networks import EncoderDecoder
from t5x_like.nn.norms import LayerNorm
from t5x_like.systems import bart
from t5x_like.systems.system import System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MassConfig(bart.Seq2SeqConfig):
    """The settings of a MASS."""

    vocab_size: int = 60_000
    positions: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    d_model: int = 1024
    d_ff: int = 4096
    heads: int = 8
    norm_epsilon: float = 1e-12


# Section 4.1: 6 layers of width 1024 on each side, feed-forward layers of width 4096. The 8 heads,
# 512 positions, epsilon and vocabulary of 60,000 pieces are from the released code.
SIZES: dict[str, MassConfig] = {"big": MassConfig()}

loss = autoregressive.loss


def build(config: MassConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES, with BART's layers.

    The decoder's inputs keep their positions in the sentence (section 3.1), which the batch has as
    `decoder_positions`.
    """
    make_norm = functools.partial(LayerNorm, epsilon=config.norm_epsilon)
    tower = functools.partial(bart.tower, config, make_norm=make_norm, reserved=0)
    return EncoderDecoder(
        make_embedding=bart.embedding(config),
        make_encoder=tower(layers=config.encoder_layers),
        make_decoder=tower(layers=config.decoder_layers, reads_memory=True),
        make_head=functools.partial(TiedHead, use_bias=True),
    )


SYSTEM = System(
    name="mass",
    sizes=SIZES,
    build=build,
    later={"dropout_broadcast": True, "norm_epsilon": 1e-12},
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
)
