"""DistilBERT in Hugging Face's folders."""

from collections.abc import Collection, Mapping
from typing import Any

from t5x_like.hf.layer_weights import attention, dense, norm
from t5x_like.hf.record import HuggingFaceFormat
from t5x_like.hf.settings import read_settings, write_settings
from t5x_like.systems.distilbert import SIZES

_LAYER, _OURS = "distilbert.transformer.layer.{layer}", "encoder/layers/{layer}"
_SETTINGS = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "positions",
    "n_layers": "layers",
    "dim": "d_model",
    "hidden_dim": "d_ff",
    "n_heads": "heads",
}
_FIXED = {"activation": "gelu", "sinusoidal_pos_embds": False, "tie_word_embeddings": True}
_DROPOUT = ("dropout", "attention_dropout")


def _from_config(config: Mapping[str, Any], *, names: Collection[str]) -> dict[str, Any]:
    del names
    return SIZES["base"] | read_settings(config, settings=_SETTINGS, fixed=_FIXED, dropout=_DROPOUT)


def _to_config(config: Mapping[str, Any]) -> dict[str, Any]:
    written = write_settings(config, settings=_SETTINGS, fixed=_FIXED, dropout=_DROPOUT)
    return written | {"model_type": "distilbert"}


FORMAT = HuggingFaceFormat(
    system="distilbert",
    model_types=("distilbert",),
    class_prefix="DistilBert",
    weights={
        "embeddings/token/embedding": "distilbert.embeddings.word_embeddings.weight",
        "embeddings/position/embedding": "distilbert.embeddings.position_embeddings.weight",
        **norm("embeddings/norm", "distilbert.embeddings.LayerNorm"),
        **attention(
            f"{_OURS}/self_attention",
            *(f"{_LAYER}.attention.{name}_lin" for name in ("q", "k", "v", "out")),
        ),
        **norm(f"{_OURS}/self_attention_norm", f"{_LAYER}.sa_layer_norm"),
        **dense(f"{_OURS}/feed_forward/wi", f"{_LAYER}.ffn.lin1"),
        **dense(f"{_OURS}/feed_forward/wo", f"{_LAYER}.ffn.lin2"),
        **norm(f"{_OURS}/feed_forward_norm", f"{_LAYER}.output_layer_norm"),
        **dense("head/masked_lm/transform", "vocab_transform"),
        **norm("head/masked_lm/norm", "vocab_layer_norm"),
        "head/masked_lm/output/bias": "vocab_projector.bias",
        **dense("head/summary/dense", "pre_classifier"),
        **dense("head/classifier", "classifier"),
        **dense("head/tagger", "classifier"),
        **dense("head/answer", "qa_outputs"),
    },
    aliases={
        "embeddings.*": "distilbert.embeddings.*",  # a model without a head
        "transformer.*": "distilbert.transformer.*",
        "vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight",  # a copy
    },
    unused=("distilbert.embeddings.position_ids", "embeddings.position_ids"),
    exported_as={"pretraining": "masked_lm"},
    not_exported=("teacher",),
    from_config=_from_config,
    to_config=_to_config,
)
