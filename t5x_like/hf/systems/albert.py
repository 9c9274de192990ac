"""ALBERT in Hugging Face's folders."""

from collections.abc import Collection, Mapping
from typing import Any

from t5x_like.hf.layer_weights import attention, dense, norm
from t5x_like.hf.record import HuggingFaceFormat
from t5x_like.hf.settings import read_settings, write_settings
from t5x_like.systems.albert import SIZES

_LAYER = "albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}"
_BLOCK = "encoder/layers"  # [groups, inner, ...]: both numbers are places in the parameter
_SETTINGS = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "positions",
    "type_vocab_size": "token_types",
    "embedding_size": "embedding",
    "num_hidden_layers": "layers",
    "num_hidden_groups": "groups",
    "inner_group_num": "inner_layers",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_attention_heads": "heads",
    "hidden_act": "activation",
    "classifier_dropout_prob": "head_dropout",
}
# The defaults of Hugging Face for settings that a config.json may lack.
_DEFAULTS = {
    "num_hidden_groups": 1,
    "inner_group_num": 1,
    "hidden_act": "gelu_new",
    "classifier_dropout_prob": 0.1,
    "hidden_dropout_prob": 0.0,
}
_FIXED = {"layer_norm_eps": 1e-12, "position_embedding_type": "absolute"}
_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def _from_config(config: Mapping[str, Any], *, names: Collection[str]) -> dict[str, Any]:
    del names
    config = {**_DEFAULTS, **config}
    return SIZES["base"] | read_settings(config, settings=_SETTINGS, fixed=_FIXED, dropout=_DROPOUT)


def _to_config(config: Mapping[str, Any]) -> dict[str, Any]:
    if config["share"] not in ("all", "none"):
        raise ValueError(
            f"model.share={config['share']!r}: Hugging Face's ALBERT shares 'all' parameters of a "
            "layer or 'none', so it has no class for this model"
        )
    groups = config["groups"] if config["share"] == "all" else config["layers"]
    theirs = {**config, "groups": groups}
    written = write_settings(theirs, settings=_SETTINGS, fixed=_FIXED, dropout=_DROPOUT)
    return written | {"model_type": "albert", "tie_word_embeddings": True}


FORMAT = HuggingFaceFormat(
    system="albert",
    model_types=("albert",),
    class_prefix="Albert",
    weights={
        "embeddings/token/embedding": "albert.embeddings.word_embeddings.weight",
        "embeddings/position/embedding": "albert.embeddings.position_embeddings.weight",
        "embeddings/token_type/embedding": "albert.embeddings.token_type_embeddings.weight",
        **norm("embeddings/norm", "albert.embeddings.LayerNorm"),
        **dense("projection", "albert.encoder.embedding_hidden_mapping_in"),
        **attention(
            f"{_BLOCK}/self_attention",
            *(f"{_LAYER}.attention.{name}" for name in ("query", "key", "value", "dense")),
        ),
        **norm(f"{_BLOCK}/self_attention_norm", f"{_LAYER}.attention.LayerNorm"),
        **dense(f"{_BLOCK}/feed_forward/wi", f"{_LAYER}.ffn"),
        **dense(f"{_BLOCK}/feed_forward/wo", f"{_LAYER}.ffn_output"),
        **norm(f"{_BLOCK}/feed_forward_norm", f"{_LAYER}.full_layer_layer_norm"),
        **dense("head/summary/dense", "albert.pooler"),
        **dense("head/masked_lm/transform", "predictions.dense"),
        **norm("head/masked_lm/norm", "predictions.LayerNorm"),
        "head/masked_lm/output/bias": "predictions.bias",
        **dense("head/row", "sop_classifier.classifier"),
        **dense("head/classifier", "classifier"),
        **dense("head/tagger", "classifier"),
        **dense("head/answer", "qa_outputs"),
    },
    aliases={
        "embeddings.*": "albert.embeddings.*",  # a model without a head
        "encoder.*": "albert.encoder.*",
        "pooler.*": "albert.pooler.*",
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",  # copies
        "predictions.decoder.bias": "predictions.bias",
    },
    unused=(
        "albert.embeddings.position_ids",
        "embeddings.position_ids",
        # The published folders hold all of pretraining, whichever class their config.json names.
        *(f"albert.pooler.{name}" for name in ("weight", "bias")),
        *(f"sop_classifier.classifier.{name}" for name in ("weight", "bias")),
    ),
    from_config=_from_config,
    to_config=_to_config,
)
