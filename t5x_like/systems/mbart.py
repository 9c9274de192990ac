"""mBART: Liu et al. 2020, "Multilingual Denoising Pre-training ..." (arXiv:2001.08210).

BART with pre-norm layers, a norm after the last layer of each side, and scaled embeddings. The
decoder's first input is the token of the language.
"""

import dataclasses

import flax.linen as nn

from t5x_like.nn.blocks import PreNormBlock
from t5x_like.systems import bart, pegasus

# Section 2.2; mBART-50 (Tang et al. 2020, arXiv:2008.00401) has more languages. The vocabulary
# size, the number of positions and the ids are from the released models.
_LARGE = pegasus.PegasusConfig(
    vocab_size=250_027,
    end_id=2,
    padding=1,
    encoder_layers=12,
    decoder_layers=12,
    activation="gelu",
)
SIZES: dict[str, pegasus.PegasusConfig] = {
    "large": _LARGE,
    "large_50": dataclasses.replace(_LARGE, vocab_size=250_054, start_id=2),
}


def build(config: pegasus.PegasusConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES, see `pegasus.build`.

    Args:
        config: `positions` is the number of learned positions, which limits the length of a text.

    Raises:
        ValueError: the activation is unknown.
    """
    return pegasus.network(
        config,
        make_block=PreNormBlock,
        make_positions=bart.positions(config),
        begins=True,
        ends=True,
    )


SYSTEM = pegasus.declare("mbart", SIZES, build)
