"""ELECTRA in Hugging Face's folders."""

from typing import Any

from t5x_like.hf.config_settings import COUNT, LAYERS, RATE, Setting
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import bert_encoder, dense, norm
from t5x_like.systems.electra import SIZES


def _derive_config(settings: Settings) -> dict[str, Any]:
    both = settings["head"] in ("pretraining", "second_stage")
    if both and settings["objective"] not in ("electra", "electra_15"):
        raise ValueError(
            f"model.objective={settings['objective']!r} trains no discriminator: the encoder "
            "without a head is written by from_pretrained(folder, head='features')"
            ".save_pretrained(NEW_FOLDER)"
        )
    return {}


FORMAT = HuggingFaceFormat(
    system="electra",
    model_types={"electra": "Electra"},
    defaults=SIZES["base"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "max_position_embeddings": Setting("positions", COUNT),
        "type_vocab_size": Setting("token_types", COUNT),
        "num_hidden_layers": Setting("layers", LAYERS),
        "embedding_size": Setting("d_embedding", COUNT),
        "hidden_size": Setting("d_model", COUNT),
        "intermediate_size": Setting("d_ff", COUNT),
        "num_attention_heads": Setting("heads", COUNT),
        "hidden_dropout_prob": Setting("dropout", RATE, default=0.1),
        "attention_probs_dropout_prob": Setting("dropout", RATE, default=0.1),
    },
    fixed={
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
        # Settings of the multiple-choice head.
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_proj_to_labels": False,
        "summary_activation": "gelu",
    },
    multiples={"hidden_size": "num_attention_heads"},
    derive_config=_derive_config,
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
        **dense("head/summary/dense", "sequence_summary.summary"),
        **dense("head/choice", "classifier"),
        **dense("head/answer", "qa_outputs"),
    },
    aliases={
        "embeddings.*": "electra.embeddings.*",  # a model without a head
        "embeddings_project.*": "electra.embeddings_project.*",
        "encoder.*": "electra.encoder.*",
        "generator_lm_head.weight": "electra.embeddings.word_embeddings.weight",  # a copy
    },
    unused=("electra.embeddings.position_ids", "embeddings.position_ids"),
    exported_as={"pretraining": "discriminator", "second_stage": "discriminator"},
    not_exported=("generator",),
)
