"""DeBERTa, version 1, in Hugging Face's folders."""

from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import COUNT, FLAG, LAYERS, RATE, Setting, integers
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import WeightMap, dense, norm
from t5x_like.systems.deberta import SIZES, TERMS

LAYER, BLOCK = "deberta.encoder.layer.{layer}", "encoder/layers/stack/{layer}"
_OWN = f"{LAYER}.attention.self"

# Shared by the formats of versions 1 and 2, which differ in the attention's projections.
SETTINGS: dict[str, Setting] = {
    "vocab_size": Setting("vocab_size", COUNT),
    "max_position_embeddings": Setting("positions", COUNT),
    "max_relative_positions": Setting("", integers(-1, 2**31 - 1), default=-1),
    "num_hidden_layers": Setting("layers", LAYERS),
    "hidden_size": Setting("d_model", COUNT),
    "intermediate_size": Setting("d_ff", COUNT),
    "num_attention_heads": Setting("heads", COUNT),
    "hidden_dropout_prob": Setting("dropout", RATE, default=0.1),
    "attention_probs_dropout_prob": Setting("dropout", RATE, default=0.1),
    "pooler_dropout": Setting("", RATE, default=0.0),
    "legacy": Setting("", FLAG, default=True),  # selects between two names of the same head
}
FIXED: dict[str, Any] = {
    "hidden_act": "gelu",
    "pooler_hidden_act": "gelu",
    "layer_norm_eps": 1e-7,
    "type_vocab_size": 0,
    "tie_word_embeddings": True,
}
ALIASES: dict[str, str] = {
    "*.gamma": "*.weight",  # the names of norms in the oldest files
    "*.beta": "*.bias",
    "embeddings.*": "deberta.embeddings.*",  # a model without a head
    "encoder.*": "deberta.encoder.*",
    "cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight",  # copies
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    # The head of files with legacy=False.
    "lm_predictions.lm_head.dense.*": "cls.predictions.transform.dense.*",
    "lm_predictions.lm_head.LayerNorm.*": "cls.predictions.transform.LayerNorm.*",
    "lm_predictions.lm_head.bias": "cls.predictions.bias",
}


def weights_without_attention() -> WeightMap:
    """Map the embeddings, the heads, and the layers except query, key and value projections."""
    return {
        "embeddings/token/embedding": "deberta.embeddings.word_embeddings.weight",
        **norm("embeddings/norm", "deberta.embeddings.LayerNorm"),
        "encoder/extra/embedding": "deberta.encoder.rel_embeddings.weight",
        f"{BLOCK}/self_attention/out/kernel": (
            f"{LAYER}.attention.output.dense.weight",
            "D (H K) -> H K D",
        ),
        f"{BLOCK}/self_attention/out/bias": f"{LAYER}.attention.output.dense.bias",
        **norm(f"{BLOCK}/self_attention_norm", f"{LAYER}.attention.output.LayerNorm"),
        **dense(f"{BLOCK}/feed_forward/wi", f"{LAYER}.intermediate.dense"),
        **dense(f"{BLOCK}/feed_forward/wo", f"{LAYER}.output.dense"),
        **norm(f"{BLOCK}/feed_forward_norm", f"{LAYER}.output.LayerNorm"),
        **dense("head/masked_lm/transform", "cls.predictions.transform.dense"),
        **norm("head/masked_lm/norm", "cls.predictions.transform.LayerNorm"),
        "head/masked_lm/output/bias": "cls.predictions.bias",
        **dense("head/summary/dense", "pooler.dense"),
        **dense("head/classifier", "classifier"),
        **dense("head/tagger", "classifier"),
        **dense("head/answer", "qa_outputs"),
    }


def derive_settings(config: Settings, settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Return the terms and span of relative positions; folders have no mask decoder."""
    if config.get("legacy") is False and any(name.startswith("cls.predictions.") for name in names):
        raise ValueError(  # Hugging Face's class would randomly initialize its head
            "config.json has legacy=False; allowed: True, where the head's tensors are named "
            "cls.predictions"
        )
    if config.get("position_biased_input", True) is not False:
        raise ValueError(
            "config.json has position_biased_input="
            f"{config.get('position_biased_input', True)!r}; allowed: False"
        )
    kinds = config.get("pos_att_type") or []
    kinds = kinds.split("|") if isinstance(kinds, str) else kinds
    terms = {tuple(sorted(value)): name for name, value in TERMS.items()}
    if not isinstance(kinds, list) or tuple(sorted(map(str, kinds))) not in terms:
        raise ValueError(
            f"config.json has pos_att_type={config['pos_att_type']!r}; allowed: lists of 'c2p' and "
            "'p2c'"
        )
    if config.get("relative_attention", False) is not bool(kinds):
        raise ValueError(
            f"config.json has relative_attention={config.get('relative_attention', False)!r} with "
            f"pos_att_type={kinds!r}; allowed: True with 'c2p' or 'p2c', False without"
        )
    span = config.get("max_relative_positions", -1)
    return {
        "terms": terms[tuple(sorted(kinds))],
        "relative_span": span if span > 0 else settings["positions"],
        "mask_decoder": False,
    }


def derive_config(settings: Settings) -> dict[str, Any]:
    """Return the settings of config.json: the inverse of `derive_settings`."""
    if settings["head"] == "masked_lm" and settings["mask_decoder"]:
        raise ValueError(
            "model.mask_decoder=True: Hugging Face has no DeBERTa with the mask decoder: the "
            "encoder without a head is written by from_pretrained(folder, head='features')"
            ".save_pretrained(NEW_FOLDER)"
        )
    terms = list(TERMS[settings["terms"]])
    return {
        "position_biased_input": False,
        "relative_attention": bool(terms),
        "pos_att_type": terms,
        "max_relative_positions": settings["relative_span"],
    }


def _derive_config(settings: Settings) -> dict[str, Any]:
    if settings["head"] == "multiple_choice":
        raise ValueError(
            "Hugging Face has no DeBERTa of version 1 with model.head='multiple_choice'"
        )
    return derive_config(settings)


def _attention() -> WeightMap:
    here = f"{BLOCK}/self_attention"
    weights: dict[str, str | tuple[str, str]] = {
        # In the file one tensor has the query, key and value of each head next to each other.
        f"{here}/{name}/kernel": (f"{_OWN}.in_proj.weight", f"(H {n}/3 K) D -> D H K")
        for n, name in enumerate(("query", "key", "value"))
    }
    return {
        **weights,
        f"{here}/query/bias": (f"{_OWN}.q_bias", "(H K) -> H K"),
        f"{here}/value/bias": (f"{_OWN}.v_bias", "(H K) -> H K"),
        f"{here}/position_key/kernel": (f"{_OWN}.pos_proj.weight", "(H K) D -> D H K"),
        f"{here}/position_query/kernel": (f"{_OWN}.pos_q_proj.weight", "(H K) D -> D H K"),
        f"{here}/position_query/bias": (f"{_OWN}.pos_q_proj.bias", "(H K) -> H K"),
    }


FORMAT = HuggingFaceFormat(
    system="deberta",
    model_types={"deberta": "Deberta"},
    defaults=SIZES["base"],
    settings=SETTINGS,
    fixed={**FIXED, "talking_head": False},
    multiples={"hidden_size": "num_attention_heads"},
    derive_settings=derive_settings,
    derive_config=_derive_config,
    weights={**weights_without_attention(), **_attention()},
    aliases=ALIASES,
)
