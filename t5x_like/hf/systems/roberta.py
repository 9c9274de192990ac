"""RoBERTa and XLM-RoBERTa in Hugging Face's folders."""

from collections.abc import Collection, Mapping
from typing import Any

from t5x_like.hf.layer_weights import bert_encoder, dense, norm
from t5x_like.hf.record import HuggingFaceFormat
from t5x_like.hf.settings import read_settings, write_settings
from t5x_like.systems.roberta import SIZES

_SETTINGS = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "positions",
    "type_vocab_size": "token_types",
    "num_hidden_layers": "layers",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_attention_heads": "heads",
    "layer_norm_eps": "norm_epsilon",
    "pad_token_id": "padding",
}
_FIXED = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def _from_config(config: Mapping[str, Any], *, names: Collection[str]) -> dict[str, Any]:
    del names
    ours = SIZES["base"] | read_settings(config, settings=_SETTINGS, fixed=_FIXED, dropout=_DROPOUT)
    return ours | {"positions": ours["positions"] - ours["padding"] - 1}


def _to_config(config: Mapping[str, Any]) -> dict[str, Any]:
    if config["head"] == "pretraining":
        raise ValueError(
            "Hugging Face has no RoBERTa with model.head='pretraining': load the model with "
            "from_pretrained(folder, head='masked_lm') and save that"
        )
    theirs = write_settings(config, settings=_SETTINGS, fixed=_FIXED, dropout=_DROPOUT)
    rows = config["positions"] + config["padding"] + 1
    return theirs | {"model_type": "roberta", "max_position_embeddings": rows}


FORMAT = HuggingFaceFormat(
    system="roberta",
    model_types=("roberta", "xlm-roberta"),
    class_prefix="Roberta",
    weights={
        **bert_encoder("roberta"),
        **dense("head/summary/dense", "roberta.pooler.dense"),
        **dense("head/masked_lm/transform", "lm_head.dense"),
        **norm("head/masked_lm/norm", "lm_head.layer_norm"),
        "head/masked_lm/output/bias": "lm_head.bias",
        **dense("head/first/dense", "classifier.dense"),
        **dense("head/classifier", "classifier.out_proj"),
        **dense("head/tagger", "classifier"),
        **dense("head/answer", "qa_outputs"),
    },
    aliases={
        "embeddings.*": "roberta.embeddings.*",  # a model without a head
        "encoder.*": "roberta.encoder.*",
        "pooler.*": "roberta.pooler.*",
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",  # copies
        "lm_head.decoder.bias": "lm_head.bias",
    },
    unused=(
        "roberta.embeddings.position_ids",
        "embeddings.position_ids",
        # Published beside a language model's head, which does not read it.
        "roberta.pooler.dense.weight",
        "roberta.pooler.dense.bias",
    ),
    from_config=_from_config,
    to_config=_to_config,
)
