"""RoBERTa and XLM-RoBERTa in Hugging Face's folders."""

from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import COUNT, LAYERS, POSITIVE, RATE, TOKEN, Setting
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import bert_encoder, dense, norm
from t5x_like.systems.roberta import SIZES


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del config, names
    # Tokens do not use the first rows of the position table, up to the row of the padding token id.
    positions = settings["positions"] - settings["padding"] - 1
    if positions < 1:
        raise ValueError(
            f"config.json has max_position_embeddings={settings['positions']}; allowed: above "
            f"pad_token_id + 1, which is {settings['padding'] + 1}"
        )
    return {"positions": positions}


def _derive_config(settings: Settings) -> dict[str, Any]:
    if settings["head"] == "pretraining":
        raise ValueError(
            "Hugging Face has no RoBERTa with model.head='pretraining': load the model with "
            "from_pretrained(folder, head='masked_lm') and save that, with its head"
        )
    return {"max_position_embeddings": settings["positions"] + settings["padding"] + 1}


FORMAT = HuggingFaceFormat(
    system="roberta",
    model_types={"roberta": "Roberta", "xlm-roberta": "XLMRoberta"},
    defaults=SIZES["base"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "max_position_embeddings": Setting("positions", COUNT),
        "type_vocab_size": Setting("token_types", COUNT),
        "num_hidden_layers": Setting("layers", LAYERS),
        "hidden_size": Setting("d_model", COUNT),
        "intermediate_size": Setting("d_ff", COUNT),
        "num_attention_heads": Setting("heads", COUNT),
        "layer_norm_eps": Setting("norm_epsilon", POSITIVE),
        "pad_token_id": Setting("padding", TOKEN),
        "hidden_dropout_prob": Setting("dropout", RATE, default=0.1),
        "attention_probs_dropout_prob": Setting("dropout", RATE, default=0.1),
    },
    fixed={
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    multiples={"hidden_size": "num_attention_heads"},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights={
        **bert_encoder("roberta"),
        **dense("head/summary/dense", "roberta.pooler.dense"),
        **dense("head/masked_lm/transform", "lm_head.dense"),
        **norm("head/masked_lm/norm", "lm_head.layer_norm"),
        "head/masked_lm/output/bias": "lm_head.bias",
        **dense("head/first/dense", "classifier.dense"),
        **dense("head/classifier", "classifier.out_proj"),
        **dense("head/tagger", "classifier"),
        **dense("head/choice", "classifier"),
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
        # Published together with a language modeling head, which does not read it.
        "roberta.pooler.dense.weight",
        "roberta.pooler.dense.bias",
    ),
)
