"""Marian, the Transformer of the OPUS-MT models: Tiedemann and Thottingal 2020 (EAMT 2020).

It is the Transformer of 2017 with Swish and biases; Junczys-Dowmunt et al. 2018 (arXiv:1804.00344)
describe the toolkit.
"""

import flax.linen as nn

from t5x_like.nn.blocks import PostNormBlock
from t5x_like.systems import pegasus

# The released models have a different vocabulary for each pair of languages: this is the size and
# the ids of English to German. The padding token, the last id, is also the decoder's first input.
SIZES: dict[str, pegasus.PegasusConfig] = {
    "base": pegasus.PegasusConfig(
        vocab_size=58_101,
        start_id=58_100,
        end_id=0,
        padding=58_100,
        positions=512,
        encoder_layers=6,
        decoder_layers=6,
        d_model=512,
        d_ff=2048,
        heads=8,
        activation="swish",
        logits_bias=True,
    )
}


def build(config: pegasus.PegasusConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES, see `pegasus.build`.

    Raises:
        ValueError: the activation is unknown.
    """
    positions = pegasus.sinusoids(config)
    return pegasus.network(config, make_block=PostNormBlock, make_positions=positions)


SYSTEM = pegasus.declare("marian", SIZES, build)
