"""mBART: Liu et al. 2020, "Multilingual Denoising Pre-training ..." (arXiv:2001.08210).

BART with pre-norm layers, a norm after the last layer of each side, and scaled embeddings. The
decoder's first input is the token of the language.
"""

import dataclasses
from collections.abc import Collection
from typing import Any, ClassVar

import flax.linen as nn

from t5x_like.hf.record import Settings
from t5x_like.nn.blocks import PreNormBlock
from t5x_like.nn.networks import EncoderDecoder
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


class MultilingualBart(EncoderDecoder):
    """An encoder-decoder whose texts end with the token of their language (section 2.1)."""

    language_last: ClassVar[bool] = True


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
        make=MultilingualBart,
    )


SYSTEM = pegasus.declare("mbart", SIZES, build)


# mBART and mBART-50 in Hugging Face's folders.


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    derived = pegasus.derive_settings(config, settings, names)
    # Folders for several target languages have no start token; then Hugging Face starts with <s>.
    if config.get("decoder_start_token_id") is None:
        derived["start_id"] = config.get("bos_token_id") or 0
    return derived


HUGGING_FACE = dataclasses.replace(
    pegasus.HUGGING_FACE,
    system="mbart",
    model_types={"mbart": "MBart"},
    defaults=SIZES["large"],
    settings={
        **pegasus.HUGGING_FACE.settings,
        **pegasus.ids(start_id=None, end_id=2, padding=1),
    },
    fixed={
        **pegasus.HUGGING_FACE.fixed,
        "normalize_embedding": True,
        "static_position_embeddings": False,
    },
    derive_settings=_derive_settings,
    unused=bart.HUGGING_FACE.unused,
)
