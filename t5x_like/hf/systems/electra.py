"""ELECTRA in Hugging Face's folders."""

from collections.abc import Collection, Mapping
from typing import Any

from t5x_like.hf.layer_weights import bert_encoder, dense, norm
from t5x_like.hf.record import HuggingFaceFormat
from t5x_like.hf.settings import read_settings, write_settings
from t5x_like.systems.electra import SIZES

_SETTINGS = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "positions",
    "type_vocab_size": "token_types",
    "num_hidden_layers": "layers",
    "embedding_size": "d_embedding",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_attention_heads": "heads",
}
_FIXED = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def _from_config(config: Mapping[str, Any], *, names: Collection[str]) -> dict[str, Any]:
    del names
    return SIZES["base"] | read_settings(config, settings=_SETTINGS, fixed=_FIXED, dropout=_DROPOUT)


def _to_config(config: Mapping[str, Any]) -> dict[str, Any]:
    if config["head"] == "pretraining" and config["objective"] not in ("electra", "electra_15"):
        raise ValueError(
            f"model.objective={config['objective']!r} trains no discriminator: load the model with "
            "from_pretrained(folder, head='features') and save that"
        )
    written = write_settings(config, settings=_SETTINGS, fixed=_FIXED, dropout=_DROPOUT)
    return written | {"model_type": "electra"}


FORMAT = HuggingFaceFormat(
    system="electra",
    model_types=("electra",),
    class_prefix="Electra",
    weights={
        **bert_encoder("electra"),
        **dense("projection", "electra.embeddings_project"),
        **dense("head/transform", "discriminator_predictions.dense"),
        **dense("head/replaced", "discriminator_predictions.dense_prediction"),
        **dense("head/masked_lm/transform", "generator_predictions.dense"),
        **norm("head/masked_lm/norm", "generator_predictions.LayerNorm"),
        "head/masked_lm/output/bias": "generator_lm_head.bias",
        **dense("head/first/dense", "classifier.dense"),
        **dense("head/classifier", "classifier.out_proj"),
        **dense("head/tagger", "classifier"),
        **dense("head/answer", "qa_outputs"),
    },
    aliases={
        "embeddings.*": "electra.embeddings.*",  # a model without a head
        "embeddings_project.*": "electra.embeddings_project.*",
        "encoder.*": "electra.encoder.*",
        "generator_lm_head.weight": "electra.embeddings.word_embeddings.weight",  # a copy
    },
    unused=("electra.embeddings.position_ids", "embeddings.position_ids"),
    exported_as={"pretraining": "discriminator"},
    not_exported=("generator",),
    from_config=_from_config,
    to_config=_to_config,
)
