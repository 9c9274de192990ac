"""DeBERTa, versions 2 and 3, in Hugging Face's folders."""

from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import FLAG, Setting, integers, one_of
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.systems import deberta
from t5x_like.hf.systems.deberta import BLOCK, LAYER
from t5x_like.hf.weight_map import WeightMap, dense, norm
from t5x_like.systems.deberta_v2 import SIZES


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    for key, value in {
        "embedding_size": settings["d_model"],
        "attention_head_size": settings["d_model"] // settings["heads"],
    }.items():
        one_of(value).check(key, config.get(key, value))
    buckets = config.get("position_buckets", -1)
    return deberta.derive_settings(config, settings, names) | {
        "relative_buckets": max(buckets, 0),
        "relative_norm": config.get("norm_rel_ebd", "none") == "layer_norm",
    }


def _derive_config(settings: Settings) -> dict[str, Any]:
    if settings["head"] in ("pretraining", "discriminator"):
        raise ValueError(
            f"model.head={settings['head']!r}: Hugging Face has no DeBERTa with a generator or a "
            "discriminator's head: the encoder without a head is written by "
            "from_pretrained(folder, head='features').save_pretrained(NEW_FOLDER)"
        )
    return deberta.derive_config(settings) | {
        "position_buckets": settings["relative_buckets"] or -1,
        "norm_rel_ebd": "layer_norm" if settings["relative_norm"] else "none",
    }


def _attention() -> WeightMap:
    """Map the projections of the tokens, and of the position table if they are separate."""
    here, there = f"{BLOCK}/self_attention", f"{LAYER}.attention.self"
    names = {
        "query": "query_proj",
        "key": "key_proj",
        "value": "value_proj",
        "position_query": "pos_query_proj",
        "position_key": "pos_key_proj",
    }
    weights: dict[str, str | tuple[str, str]] = {}
    for name, their in names.items():
        weights[f"{here}/{name}/kernel"] = (f"{there}.{their}.weight", "(H K) D -> D H K")
        weights[f"{here}/{name}/bias"] = (f"{there}.{their}.bias", "(H K) -> H K")
    return weights


FORMAT = HuggingFaceFormat(
    system="deberta_v2",
    model_types={"deberta-v2": "DebertaV2"},
    defaults=SIZES["v3_base"],
    settings={
        **deberta.SETTINGS,
        "position_buckets": Setting("", integers(-1, 2**31 - 1), default=-1),
        "norm_rel_ebd": Setting("", one_of("none", "layer_norm"), default="none"),
        "share_att_key": Setting("share_projections", FLAG, default=False),
        "conv_kernel_size": Setting("convolution", integers(0, 2**31 - 1), default=0),
        "conv_act": Setting("convolution_activation", one_of("gelu", "tanh"), default="tanh"),
    },
    fixed={**deberta.FIXED, "conv_groups": 1},
    multiples={"hidden_size": "num_attention_heads"},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights={
        **_attention(),
        **deberta.weights_without_attention(),
        **dense("head/choice", "classifier"),  # version 1 has no such class
        # The discriminator of version 3, published with the encoder; read if model.head needs it.
        **norm("head/norm", "mask_predictions.LayerNorm"),
        **dense("head/transform", "mask_predictions.dense"),
        **dense("head/replaced", "mask_predictions.classifier"),
        **norm("encoder/extra/norm", "deberta.encoder.LayerNorm"),
        "encoder/layers/neighbors/convolution/kernel": (
            "deberta.encoder.conv.conv.weight",
            "O I W -> W I O",
        ),
        "encoder/layers/neighbors/convolution/bias": "deberta.encoder.conv.conv.bias",
        **norm("encoder/layers/neighbors/norm", "deberta.encoder.conv.LayerNorm"),
    },
    aliases=deberta.ALIASES,
    unused=tuple(
        f"mask_predictions.{part}.{name}"
        for part in ("dense", "LayerNorm", "classifier")
        for name in ("weight", "bias")
    ),
)
