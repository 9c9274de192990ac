"""T5 and mT5 in Hugging Face's folders."""

from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import (
    COUNT,
    FLAG,
    LAYERS,
    RATE,
    Setting,
    integers,
    one_of,
    or_null,
)
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import WeightMap
from t5x_like.systems.t5 import SIZES


def attention_weights(here: str, there: str) -> WeightMap:
    """Return the weight map of an attention layer without biases."""
    return {
        f"{here}/query/kernel": (f"{there}.q.weight", "(H K) D -> D H K"),
        f"{here}/key/kernel": (f"{there}.k.weight", "(H K) D -> D H K"),
        f"{here}/value/kernel": (f"{there}.v.weight", "(H K) D -> D H K"),
        f"{here}/out/kernel": (f"{there}.o.weight", "D (H K) -> H K D"),
    }


def _feed_forward(here: str, there: str) -> WeightMap:
    return {
        f"{here}/wi/kernel": (f"{there}.wi.weight", "F D -> D F"),
        f"{here}/wi_0/kernel": (f"{there}.wi_0.weight", "F D -> D F"),
        f"{here}/wi_1/kernel": (f"{there}.wi_1.weight", "F D -> D F"),
        f"{here}/wo/kernel": (f"{there}.wo.weight", "D F -> F D"),
    }


_SUBLAYERS: dict[str, tuple[str, Any]] = {
    "self_attention": ("SelfAttention", attention_weights),
    "cross_attention": ("EncDecAttention", attention_weights),
    "feed_forward": ("DenseReluDense", _feed_forward),
}


def _tower_weights(tower: str, *sublayers: str) -> dict[str, Any]:
    first = f"{tower}.block.0.layer.0.SelfAttention"  # has the position bias that all layers share
    weights: dict[str, Any] = {
        f"{tower}/relative_position_bias/embedding": f"{first}.relative_attention_bias.weight",
        f"{tower}/final_norm/scale": f"{tower}.final_layer_norm.weight",
    }
    for n, sublayer in enumerate(sublayers):
        here, there = f"{tower}/layers/{{layer}}/{sublayer}", f"{tower}.block.{{layer}}.layer.{n}"
        name, kernels = _SUBLAYERS[sublayer]
        weights[f"{here}_norm/scale"] = f"{there}.layer_norm.weight"
        weights |= kernels(here, f"{there}.{name}")
    return weights


RELATIVE_POSITIONS = {
    "relative_attention_num_buckets": Setting("relative_buckets", integers(4, 2**20), default=32),
    "relative_attention_max_distance": Setting("relative_max_distance", COUNT, default=128),
}


OTHER_NAMES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
}


def check_relative_positions(settings: Settings) -> None:
    """Check that some buckets of relative positions are left for several distances each.

    Raises:
        ValueError: the half of the buckets with exact distances reaches the largest distance.
    """
    exact = settings["relative_buckets"] // 2
    if settings["relative_max_distance"] <= exact:
        raise ValueError(
            f"config.json has relative_attention_max_distance={settings['relative_max_distance']}; "
            f"allowed: above half of relative_attention_num_buckets, which is {exact}"
        )


_FEED_FORWARDS = {"relu": "relu", "gated-gelu": "gated_gelu"}
# `feed_forward_proj` -> other settings of config.json that it implies.
_IMPLIED = {
    "relu": {"dense_act_fn": "relu", "is_gated_act": False},
    "gated-gelu": {"dense_act_fn": "gelu_new", "is_gated_act": True},
}


def derive_settings(config: Settings, settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Return the settings that depend on several in config.json, see `record.DeriveSettings`."""
    check_relative_positions(settings)
    encodes_only = settings["architecture"] == "encoder"
    one_of(True, not encodes_only).check(
        "is_encoder_decoder", config.get("is_encoder_decoder", True)
    )
    mt5 = config["model_type"] == "mt5"
    feed_forward = config.get("feed_forward_proj", "gated-gelu" if mt5 else "relu")
    for key, value in _IMPLIED[feed_forward].items():
        one_of(value).check(key, config.get(key, value))
    # The meaning of `tie_word_embeddings` differs between versions of transformers, so the tensors
    # decide whether the output layer is tied.
    scaled = not mt5 and config.get("tie_word_embeddings") is not False
    if mt5:
        one_of(False).check("scale_decoder_outputs", config.get("scale_decoder_outputs", False))
    scaled = config.get("scale_decoder_outputs", scaled)
    tied = scaled or "lm_head.weight" not in names
    return {
        "decoder_layers": config.get("num_decoder_layers") or settings["encoder_layers"],
        "feed_forward": _FEED_FORWARDS[feed_forward],
        "tied_head": tied,
        "scale_tied_logits": scaled or not tied,
    }


def derive_config(settings: Settings) -> dict[str, Any]:
    """Return the settings of config.json that depend on several here, see `record.DeriveConfig`."""
    if settings["architecture"] not in ("encoder_decoder", "encoder"):
        raise ValueError(
            f"model.architecture={settings['architecture']!r}: Hugging Face's T5 supports only "
            "'encoder_decoder' and 'encoder'"
        )
    if settings["d_adapter"]:
        raise ValueError(
            f"model.d_adapter={settings['d_adapter']}: Hugging Face's T5 has no adapter layers; a "
            "run with them stays in its own format"
        )
    if settings["scaled_scores"]:
        raise ValueError(
            "model.scaled_scores=True: Hugging Face's T5 does not scale attention scores; a run "
            "with it stays in its own format"
        )
    (feed_forward,) = (
        name for name, ours in _FEED_FORWARDS.items() if ours == settings["feed_forward"]
    )
    return {
        "is_encoder_decoder": settings["architecture"] == "encoder_decoder",
        "feed_forward_proj": feed_forward,
        # Versions before 5 take both from the first setting; later versions read only the second.
        "tie_word_embeddings": settings["tied_head"],
        "scale_decoder_outputs": settings["tied_head"] and settings["scale_tied_logits"],
    }


FORMAT = HuggingFaceFormat(
    system="t5",
    model_types={"t5": "T5", "mt5": "MT5"},
    class_suffix="ForConditionalGeneration",
    other_classes={"EncoderModel": {"architecture": "encoder"}},
    defaults=SIZES["small"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "d_model": Setting("d_model", COUNT),
        "d_kv": Setting("d_kv", COUNT),
        "d_ff": Setting("d_ff", COUNT),
        "num_heads": Setting("heads", COUNT),
        "num_layers": Setting("encoder_layers", LAYERS),
        "num_decoder_layers": Setting("decoder_layers", or_null(LAYERS), default=None),
        "dropout_rate": Setting("dropout", RATE, default=0.1),
        **RELATIVE_POSITIONS,
        "feed_forward_proj": Setting("", one_of("relu", "gated-gelu"), default=None),
        "tie_word_embeddings": Setting("", FLAG, default=None),
        "scale_decoder_outputs": Setting("", FLAG, default=None),
        "is_encoder_decoder": Setting("", FLAG, default=True),
    },
    other_names={**OTHER_NAMES, "head_dim": "d_kv"},
    fixed={
        "layer_norm_epsilon": 1e-6,
        "tie_encoder_decoder": False,
        "is_decoder": False,
    },
    derive_settings=derive_settings,
    derive_config=derive_config,
    weights={
        "token_embedder/embedding": "shared.weight",
        "lm_head/kernel": ("lm_head.weight", "V D -> D V"),
        **_tower_weights("encoder", "self_attention", "feed_forward"),
        **_tower_weights("decoder", "self_attention", "cross_attention", "feed_forward"),
    },
    # Copies of other tensors that some files have.
    aliases={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
    },
    # The oldest files contain it, though the network's cross-attention has no position bias.
    unused=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
)
