"""BERT in Hugging Face's folders."""

from collections.abc import Collection, Mapping
from typing import Any

from t5x_like.hf.layer_weights import bert_encoder, dense, norm
from t5x_like.hf.record import HuggingFaceFormat
from t5x_like.hf.settings import read_settings, write_settings
from t5x_like.systems.bert import SIZES

_SETTINGS = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "positions",
    "type_vocab_size": "token_types",
    "num_hidden_layers": "layers",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_attention_heads": "heads",
}
_FIXED = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def _from_config(config: Mapping[str, Any], *, names: Collection[str]) -> dict[str, Any]:
    del names
    return SIZES["base"] | read_settings(config, settings=_SETTINGS, fixed=_FIXED, dropout=_DROPOUT)


def _to_config(config: Mapping[str, Any]) -> dict[str, Any]:
    written = write_settings(config, settings=_SETTINGS, fixed=_FIXED, dropout=_DROPOUT)
    return written | {"model_type": "bert"}


FORMAT = HuggingFaceFormat(
    system="bert",
    model_types=("bert",),
    class_prefix="Bert",
    weights={
        **bert_encoder("bert"),
        **dense("head/summary/dense", "bert.pooler.dense"),
        **dense("head/masked_lm/transform", "cls.predictions.transform.dense"),
        **norm("head/masked_lm/norm", "cls.predictions.transform.LayerNorm"),
        "head/masked_lm/output/bias": "cls.predictions.bias",
        **dense("head/row", "cls.seq_relationship"),
        **dense("head/classifier", "classifier"),
        **dense("head/tagger", "classifier"),
        **dense("head/answer", "qa_outputs"),
    },
    aliases={
        "*.gamma": "*.weight",  # the names of norms in the oldest files
        "*.beta": "*.bias",
        "embeddings.*": "bert.embeddings.*",  # a model without a head
        "encoder.*": "bert.encoder.*",
        "pooler.*": "bert.pooler.*",
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",  # copies
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    unused=(
        "bert.embeddings.position_ids",
        "embeddings.position_ids",
        # The published folders contain all of pretraining, whichever class their config.json names.
        *(f"bert.pooler.dense.{name}" for name in ("weight", "bias")),
        *(f"cls.seq_relationship.{name}" for name in ("weight", "bias")),
    ),
    from_config=_from_config,
    to_config=_to_config,
)
