"""BART in Hugging Face's folders."""

from collections.abc import Collection, Mapping
from typing import Any

from t5x_like.hf.config_settings import (
    COUNT,
    LAYERS,
    RATE,
    TOKEN,
    Setting,
    check_multiple,
    or_null,
)
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import WeightMap, attention, dense, norm
from t5x_like.systems.bart import SIZES, decoder_sizes


def _tower(here: str, attentions: Mapping[str, str]) -> WeightMap:
    """Return the weight map of the encoder or the decoder.

    Args:
        attentions: {our name of an attention in a layer: Hugging Face's name}.
    """
    layer, theirs = f"{here}/layers/{{layer}}", f"model.{here}.layers.{{layer}}"
    weights: dict[str, Any] = {
        f"{here}/entrance/position/embedding": f"model.{here}.embed_positions.weight",
        **norm(f"{here}/entrance/norm", f"model.{here}.layernorm_embedding"),
        **dense(f"{layer}/feed_forward/wi", f"{theirs}.fc1"),
        **dense(f"{layer}/feed_forward/wo", f"{theirs}.fc2"),
        **norm(f"{layer}/feed_forward_norm", f"{theirs}.final_layer_norm"),
    }
    for ours, name in attentions.items():
        kernels = (f"{theirs}.{name}.{kernel}_proj" for kernel in ("q", "k", "v", "out"))
        weights |= attention(f"{layer}/{ours}", *kernels)
        weights |= norm(f"{layer}/{ours}_norm", f"{theirs}.{name}_layer_norm")
    return weights


# Our settings for which Hugging Face has several settings, which must be equal.
_ONE_VALUE = ("sep_id",)


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    check_multiple(config, "d_model", "decoder_attention_heads")
    for key, setting in FORMAT.settings.items():
        value = settings[setting.name]
        if setting.name in _ONE_VALUE and config.get(key) not in (value, None):
            raise ValueError(f"config.json has {key}={config[key]!r}; allowed: {value!r}")
    return {"logits_bias": "final_logits_bias" in names}


def _derive_config(settings: Settings) -> dict[str, Any]:
    if settings["head"] in ("translation", "tagging", "multiple_choice"):
        raise ValueError(f"Hugging Face has no BART with model.head={settings['head']!r}")
    sizes = decoder_sizes(settings)
    return {"decoder_ffn_dim": sizes["d_ff"], "decoder_attention_heads": sizes["heads"]}


FORMAT = HuggingFaceFormat(
    system="bart",
    model_types={"bart": "Bart"},
    defaults=SIZES["large"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "max_position_embeddings": Setting("positions", COUNT),
        "encoder_layers": Setting("encoder_layers", LAYERS),
        "decoder_layers": Setting("decoder_layers", LAYERS),
        "d_model": Setting("d_model", COUNT),
        "encoder_ffn_dim": Setting("d_ff", COUNT),
        "decoder_ffn_dim": Setting("decoder_d_ff", COUNT),
        "encoder_attention_heads": Setting("heads", COUNT),
        "decoder_attention_heads": Setting("decoder_heads", COUNT),
        "dropout": Setting("dropout", RATE, default=0.1),
        "attention_dropout": Setting("dropout", RATE, default=0.1),
        "activation_dropout": Setting("dropout", RATE, default=0.1),
        "decoder_start_token_id": Setting("sep_id", or_null(TOKEN), default=None),
        "eos_token_id": Setting("sep_id", or_null(TOKEN), default=None),
        "pad_token_id": Setting("padding", or_null(TOKEN), default=None),
    },
    other_names={
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    },
    fixed={
        "is_encoder_decoder": True,
        "activation_function": "gelu",
        "scale_embedding": False,
        "normalize_before": False,
        "normalize_embedding": True,
        "add_final_layer_norm": False,
        "static_position_embeddings": False,
        "tie_word_embeddings": True,
    },
    multiples={"d_model": "encoder_attention_heads"},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights={
        "token_embedder/embedding": "model.shared.weight",
        **_tower("encoder", {"self_attention": "self_attn"}),
        **_tower("decoder", {"self_attention": "self_attn", "cross_attention": "encoder_attn"}),
        "lm_head/bias": ("final_logits_bias", "0/1 V -> V"),
        **dense("head/first/dense", "classification_head.dense"),
        **dense("head/classifier", "classification_head.out_proj"),
        **dense("head/answer", "qa_outputs"),
    },
    aliases={
        "shared.weight": "model.shared.weight",  # a model without a head
        "encoder.*": "model.encoder.*",
        "decoder.*": "model.decoder.*",
        # Copies.
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
        "lm_head.weight": "model.shared.weight",
    },
    # The bias is zero in every published folder. A model has it only if model.logits_bias is set,
    # and then it is read.
    unused=("final_logits_bias", "model.encoder.version", "model.decoder.version"),
)
