"""Marian in Hugging Face's folders, if both languages share one vocabulary."""

import dataclasses
from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import COUNT, Setting, one_of, or_null
from t5x_like.hf.record import Settings
from t5x_like.hf.systems import pegasus
from t5x_like.systems.marian import SIZES


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    one_of(config["vocab_size"], None).check("decoder_vocab_size", config.get("decoder_vocab_size"))
    return pegasus.derive_settings(config, settings, names)


def _derive_config(settings: Settings) -> dict[str, Any]:
    return {**pegasus.derive_config(settings), "decoder_vocab_size": settings["vocab_size"]}


FORMAT = dataclasses.replace(
    pegasus.FORMAT,
    system="marian",
    model_types={"marian": "Marian"},
    class_suffix="MTModel",
    defaults=SIZES["base"],
    settings={
        **pegasus.FORMAT.settings,
        **pegasus.ids(start_id=58_100, end_id=0, padding=58_100),
        "decoder_vocab_size": Setting("", or_null(COUNT), default=None),
    },
    fixed={
        **pegasus.FORMAT.fixed,
        "normalize_before": False,
        "add_final_layer_norm": False,
        "share_encoder_decoder_embeddings": True,
    },
    derive_settings=_derive_settings,
    derive_config=_derive_config,
)
