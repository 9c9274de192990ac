"""mBART: Liu et al. 2020, "Multilingual Denoising Pre-training ..." (arXiv:2001.08210).

BART with pre-norm layers, a norm after the last one of each side, and scaled embeddings. A token
of the language is the decoder's first input.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from t5x_like.models.blocks.residual import PreNormBlock
from t5x_like.systems import bart, pegasus

# Section 2.2; mBART-50 (Tang et al. 2020, arXiv:2008.00401) has more languages. The rows of
# embeddings, the positions and the ids are the released models'.
_LARGE: dict[str, Any] = pegasus.SIZES["large"] | {
    "vocab_size": 250_027,
    "start_id": 0,
    "end_id": 2,
    "padding": 1,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "activation": "gelu",
}
SIZES: dict[str, dict[str, Any]] = {
    "large": _LARGE,
    "large_50": _LARGE | {"vocab_size": 250_054, "start_id": 2},
}


def build(config: Mapping[str, Any]) -> nn.Module:
    """Build the network of a config with the keys of SIZES, see `pegasus.build`.

    Args:
        config: `positions` is the length of the table, and so the longest text.

    Raises:
        ValueError: no such activation.
    """
    return pegasus.network(
        config,
        make_block=PreNormBlock,
        make_positions=bart.positions(config),
        begins=True,
        ends=True,
    )


SYSTEM = pegasus.declare("mbart", SIZES, build)
