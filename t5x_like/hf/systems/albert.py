"""ALBERT in Hugging Face's folders."""

from typing import Any

from t5x_like.hf.config_settings import COUNT, LAYERS, RATE, Setting, one_of
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import attention, dense, norm
from t5x_like.systems.albert import SIZES

_LAYER = "albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}"
_BLOCK = "encoder/layers"  # [groups, inner, ...]: both numbers are indices of the parameter


def _derive_config(settings: Settings) -> dict[str, Any]:
    if settings["share"] not in ("all", "none"):
        raise ValueError(
            f"model.share={settings['share']!r}: Hugging Face's ALBERT shares 'all' parameters of "
            "a layer or 'none', so it has no class for this model"
        )
    groups = settings["groups"] if settings["share"] == "all" else settings["layers"]
    return {"num_hidden_groups": groups}


FORMAT = HuggingFaceFormat(
    system="albert",
    model_types={"albert": "Albert"},
    defaults=SIZES["base"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "max_position_embeddings": Setting("positions", COUNT),
        "type_vocab_size": Setting("token_types", COUNT),
        "embedding_size": Setting("embedding", COUNT),
        "num_hidden_layers": Setting("layers", LAYERS),
        "num_hidden_groups": Setting("groups", LAYERS, default=1),
        "inner_group_num": Setting("inner_layers", LAYERS, default=1),
        "hidden_size": Setting("d_model", COUNT),
        "intermediate_size": Setting("d_ff", COUNT),
        "num_attention_heads": Setting("heads", COUNT),
        "hidden_act": Setting("activation", one_of("gelu", "gelu_new"), default="gelu_new"),
        "classifier_dropout_prob": Setting("head_dropout", RATE, default=0.1),
        "hidden_dropout_prob": Setting("dropout", RATE, default=0.0),
        "attention_probs_dropout_prob": Setting("dropout", RATE, default=0.0),
    },
    fixed={
        "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
    },
    multiples={"hidden_size": "num_attention_heads"},
    derive_config=_derive_config,
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
        **dense("head/choice", "classifier"),
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
)
