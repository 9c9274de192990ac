"""BigBird in Hugging Face's folders."""

from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import COUNT, LAYERS, RATE, Setting, integers, one_of
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import bert_encoder, dense, norm
from t5x_like.systems.bigbird import SIZES

_PARTS = {"block_sparse": "window|random|global", "original_full": "all"}


def derive_settings(config: Settings, settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Return the settings of the attention, see `DeriveSettings`."""
    del settings, names
    kind = config.get("attention_type", "block_sparse")
    one_of(*_PARTS).check("attention_type", kind)
    # In evaluation Hugging Face uses the first block for every random block.
    return {"attention_parts": _PARTS[kind], "random_blocks": "first"}


def derive_config(settings: Settings) -> dict[str, Any]:
    """Return the `attention_type` of config.json, see `DeriveConfig`."""
    kinds = {parts: kind for kind, parts in _PARTS.items()}
    if settings["attention_parts"] not in kinds:
        raise ValueError(
            f"model.attention_parts={settings['attention_parts']!r}: Hugging Face's BigBird has "
            f"{' or '.join(map(repr, kinds))}"
        )
    return {"attention_type": kinds[settings["attention_parts"]]}


FORMAT = HuggingFaceFormat(
    system="bigbird",
    model_types={"big_bird": "BigBird"},
    defaults=SIZES["base"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "max_position_embeddings": Setting("positions", COUNT),
        "type_vocab_size": Setting("token_types", COUNT),
        "num_hidden_layers": Setting("layers", LAYERS),
        "hidden_size": Setting("d_model", COUNT),
        "intermediate_size": Setting("d_ff", COUNT),
        "num_attention_heads": Setting("heads", COUNT),
        "block_size": Setting("block", COUNT, default=64),
        "num_random_blocks": Setting("random", integers(0, 1000), default=3),
        "hidden_dropout_prob": Setting("dropout", RATE, default=0.1),
        "attention_probs_dropout_prob": Setting("dropout", RATE, default=0.1),
    },
    fixed={
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-12,
        "use_bias": True,
        "rescale_embeddings": False,
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    multiples={"hidden_size": "num_attention_heads"},
    derive_settings=derive_settings,
    derive_config=derive_config,
    weights={
        **bert_encoder("bert"),
        **dense("head/summary/dense", "bert.pooler"),
        **dense("head/masked_lm/transform", "cls.predictions.transform.dense"),
        **norm("head/masked_lm/norm", "cls.predictions.transform.LayerNorm"),
        "head/masked_lm/output/bias": "cls.predictions.bias",
        **dense("head/row", "cls.seq_relationship"),
        **dense("head/first/dense", "classifier.dense"),
        **dense("head/classifier", "classifier.out_proj"),
        **dense("head/tagger", "classifier"),
        **dense("head/choice", "classifier"),
        **dense("head/feed_forward/wi", "qa_classifier.intermediate.dense"),
        **dense("head/feed_forward/wo", "qa_classifier.output.dense"),
        **norm("head/norm", "qa_classifier.output.LayerNorm"),
        **dense("head/answer", "qa_classifier.qa_outputs"),
    },
    aliases={
        "embeddings.*": "bert.embeddings.*",  # a model without a head
        "encoder.*": "bert.encoder.*",
        "pooler.*": "bert.pooler.*",
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",  # copies
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    unused=(
        "bert.embeddings.position_ids",
        "embeddings.position_ids",
        "bert.embeddings.token_type_ids",
        "embeddings.token_type_ids",
        *(f"bert.pooler.{name}" for name in ("weight", "bias")),
        *(f"cls.seq_relationship.{name}" for name in ("weight", "bias")),
    ),
)
