"""BART in Hugging Face's folders."""

from collections.abc import Collection, Mapping
from typing import Any

from t5x_like.hf.layer_weights import attention, dense, norm
from t5x_like.hf.record import HuggingFaceFormat
from t5x_like.hf.settings import read_settings, write_settings
from t5x_like.hf.weight_map import WeightMap
from t5x_like.systems.bart import SIZES


def _tower(here: str, attentions: Mapping[str, str]) -> WeightMap:
    """The weights of the encoder or the decoder.

    Args:
        attentions: our names of a layer's attentions -> Hugging Face's.
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


_SETTINGS = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "positions",
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "d_model": "d_model",
    "encoder_ffn_dim": "d_ff",
    "encoder_attention_heads": "heads",
}
_DROPOUT = ("dropout", "attention_dropout", "activation_dropout")
_IDS = {"eos_token_id": "sep_id", "decoder_start_token_id": "sep_id", "pad_token_id": "padding"}
_DECODERS = {"decoder_ffn_dim": "d_ff", "decoder_attention_heads": "heads"}
_FIXED = {
    "is_encoder_decoder": True,
    "activation_function": "gelu",
    "scale_embedding": False,
    "normalize_before": False,
    "normalize_embedding": True,
    "add_final_layer_norm": False,
    "static_position_embeddings": False,
    "tie_word_embeddings": True,
}


def _from_config(config: Mapping[str, Any], *, names: Collection[str]) -> dict[str, Any]:
    ours = read_settings(config, settings=_SETTINGS, fixed=_FIXED, dropout=_DROPOUT)
    ours |= {name: config[key] for key, name in _IDS.items() if config.get(key) is not None}
    ours["logits_bias"] = "final_logits_bias" in names
    ours = SIZES["large"] | ours
    for key, name in {**_DECODERS, **_IDS}.items():
        value = ours[name]
        if config.get(key, value) not in (value, None):
            raise ValueError(f"config.json has {key}={config[key]!r}; allowed: {value!r}")
    return ours


def _to_config(config: Mapping[str, Any]) -> dict[str, Any]:
    if config["head"] in ("translation", "tagging"):
        raise ValueError(f"Hugging Face has no BART with model.head={config['head']!r}")
    settings = {**_SETTINGS, **_DECODERS, **_IDS}
    written = write_settings(config, settings=settings, fixed=_FIXED, dropout=_DROPOUT)
    return written | {"model_type": "bart"}


FORMAT = HuggingFaceFormat(
    system="bart",
    model_types=("bart",),
    class_prefix="Bart",
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
    # The bias is zero in every published folder. A model has it only where model.logits_bias is
    # set, and then it is read.
    unused=("final_logits_bias", "model.encoder.version", "model.decoder.version"),
    from_config=_from_config,
    to_config=_to_config,
)
