"""Pegasus in Hugging Face's folders; the folders of Marian and mBART have the same tensors."""

from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import FLAG, TOKEN, Setting, check_multiple, one_of, or_null
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.systems import bart
from t5x_like.hf.weight_map import norm
from t5x_like.systems.bart import decoder_sizes
from t5x_like.systems.pegasus import ACTIVATIONS, SIZES

_IDS = {"decoder_start_token_id": "start_id", "eos_token_id": "end_id", "pad_token_id": "padding"}
POSITIONS = tuple(f"model.{tower}.embed_positions.weight" for tower in ("encoder", "decoder"))


def derive_settings(config: Settings, settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Return the settings that depend on several in config.json, see `record.DeriveSettings`."""
    del settings
    check_multiple(config, "d_model", "decoder_attention_heads")
    return {"logits_bias": "final_logits_bias" in names}


def derive_config(settings: Settings) -> dict[str, Any]:
    """Return the settings of config.json that depend on several here, see `record.DeriveConfig`."""
    sizes = decoder_sizes(settings)
    return {"decoder_ffn_dim": sizes["d_ff"], "decoder_attention_heads": sizes["heads"]}


def ids(**defaults: int | None) -> dict[str, Setting]:
    """Return the `Setting`s of token ids.

    Args:
        defaults: {our name: id if config.json lacks the setting}.
    """
    return {
        name: Setting(ours, or_null(TOKEN), default=defaults[ours]) for name, ours in _IDS.items()
    }


FORMAT = HuggingFaceFormat(
    system="pegasus",
    model_types={"pegasus": "Pegasus"},
    class_suffix="ForConditionalGeneration",
    defaults=SIZES["large"],
    settings={
        **{name: one for name, one in bart.FORMAT.settings.items() if name not in _IDS},
        "attention_dropout": Setting(
            "dropout", bart.FORMAT.settings["dropout"].allowed, default=0.0
        ),
        "activation_function": Setting("activation", one_of(*ACTIVATIONS), default="gelu"),
        "scale_embedding": Setting("scale_embeddings", FLAG, default=False),
        **ids(start_id=0, end_id=1, padding=0),
    },
    other_names=bart.FORMAT.other_names,
    fixed={
        "is_encoder_decoder": True,
        "is_decoder": False,
        "normalize_before": True,
        "normalize_embedding": False,
        "add_final_layer_norm": True,
        "static_position_embeddings": True,
        "tie_word_embeddings": True,
    },
    multiples=bart.FORMAT.multiples,
    derive_settings=derive_settings,
    derive_config=derive_config,
    weights={
        **{here: there for here, there in bart.FORMAT.weights.items() if "head/" not in here},
        "lm_head/bias": bart.FORMAT.weights["lm_head/bias"],
        **norm("encoder/exit", "model.encoder.layer_norm"),
        **norm("decoder/exit", "model.decoder.layer_norm"),
    },
    aliases=bart.FORMAT.aliases,
    # The sinusoidal position tables, which are computed here.
    unused=(*bart.FORMAT.unused, *POSITIONS),
)
