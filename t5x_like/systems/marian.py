"""Marian, the Transformer of the OPUS-MT models: Tiedemann and Thottingal 2020 (EAMT 2020).

It is the Transformer of 2017 with Swish and biases; Junczys-Dowmunt et al. 2018 (arXiv:1804.00344)
describe the toolkit.
"""

import dataclasses
from collections.abc import Collection
from typing import Any

import flax.linen as nn

from t5x_like.hf.config_settings import COUNT, Setting, one_of, or_null
from t5x_like.hf.record import Settings
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


# Marian in Hugging Face's folders, if both languages share one vocabulary.


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    one_of(config["vocab_size"], None).check("decoder_vocab_size", config.get("decoder_vocab_size"))
    return pegasus.derive_settings(config, settings, names)


def _derive_config(settings: Settings) -> dict[str, Any]:
    return {**pegasus.derive_config(settings), "decoder_vocab_size": settings["vocab_size"]}


HUGGING_FACE = dataclasses.replace(
    pegasus.HUGGING_FACE,
    system="marian",
    model_types={"marian": "Marian"},
    class_suffix="MTModel",
    defaults=SIZES["base"],
    settings={
        **pegasus.HUGGING_FACE.settings,
        **pegasus.ids(start_id=58_100, end_id=0, padding=58_100),
        "decoder_vocab_size": Setting("", or_null(COUNT), default=None),
    },
    fixed={
        **pegasus.HUGGING_FACE.fixed,
        "normalize_before": False,
        "add_final_layer_norm": False,
        "share_encoder_decoder_embeddings": True,
    },
    derive_settings=_derive_settings,
    derive_config=_derive_config,
)
