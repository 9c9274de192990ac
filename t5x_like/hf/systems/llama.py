"""LLaMA and Mistral in Hugging Face's folders."""

from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import (
    COUNT,
    FLAG,
    LAYERS,
    OBJECT,
    POSITIVE,
    TEXT,
    TOKEN,
    Setting,
    check_multiple,
    or_list,
    or_null,
)
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.nn.attention.positions import select_scaling
from t5x_like.systems.llama import SIZES

_HERE, _THERE = "decoder/layers/{layer}", "model.layers.{layer}"


def derive_settings(config: Settings, settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Return the settings that depend on several in config.json, see `record.DeriveSettings`."""
    del names
    if config.get("head_dim") is None:
        check_multiple(config, "hidden_size", "num_attention_heads")
    heads, windowed = settings["heads"], config["model_type"] == "mistral"
    return {
        **_read_rotary(config),
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_width": config.get("head_dim") or settings["d_model"] // heads,
        "window": (config.get("sliding_window") or 0) if windowed else 0,
        "bos_id": config.get("bos_token_id", 1),
        "eos_id": config.get("eos_token_id", 2),  # null: texts have no end token
    }


def _read_rotary(config: Settings) -> dict[str, Any]:
    """Return theta and the scaling: transformers 5 has one setting for both, older versions two.

    Raises:
        ValueError: the settings are not supported, or the new and the old setting differ.
    """
    given = [name for name in ("rope_parameters", "rope_scaling") if config.get(name)]
    found = [_read_rope(name, config) for name in given or ("rope_parameters",)]
    if found[0] != found[-1]:
        raise ValueError(
            f"config.json has rope_parameters={config['rope_parameters']!r} and another "
            f"rope_scaling={config['rope_scaling']!r}; allowed: one of them"
        )
    return found[0]


def _read_rope(setting: str, config: Settings) -> dict[str, Any]:
    found = dict(config.get(setting) or {})
    kinds = [found.pop(name, None) for name in ("rope_type", "type")]
    kind = next(filter(None, kinds), "default")
    TEXT.check(f"{setting}.rope_type", kind)
    for name, value in found.items():
        POSITIVE.check(f"{setting}.{name}", value)
    theta = found.pop("rope_theta", None) or config.get("rope_theta", 10_000.0)
    scaling = {} if kind == "default" else {"rope_type": kind, **found}
    select_scaling(scaling)  # raises an error if the kind is not supported
    return {"rope_theta": theta, "rope_scaling": scaling}


def derive_config(settings: Settings) -> dict[str, Any]:
    """Return the settings of config.json that depend on several here, see `record.DeriveConfig`."""
    theta, scaling = settings["rope_theta"], dict(settings["rope_scaling"])
    config = {
        "sliding_window": settings["window"] or None,
        "rope_parameters": {"rope_type": "default", **scaling, "rope_theta": theta},
        # Read by transformers before version 5.
        "rope_theta": theta,
        "rope_scaling": scaling or None,
    }
    return config | ({"model_type": "mistral"} if settings["window"] else {})


FORMAT = HuggingFaceFormat(
    system="llama",
    model_types={"llama": "Llama", "mistral": "Mistral"},
    class_suffix="ForCausalLM",
    defaults=SIZES["7b"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "max_position_embeddings": Setting("positions", COUNT),
        "num_hidden_layers": Setting("layers", LAYERS),
        "hidden_size": Setting("d_model", COUNT),
        "intermediate_size": Setting("d_ff", COUNT),
        "num_attention_heads": Setting("heads", COUNT),
        "num_key_value_heads": Setting("kv_heads", or_null(COUNT), default=None),
        "head_dim": Setting("head_width", or_null(COUNT), default=None),
        "rms_norm_eps": Setting("norm_epsilon", POSITIVE),
        "tie_word_embeddings": Setting("tied_head", FLAG, default=False),
        "bos_token_id": Setting("bos_id", or_null(TOKEN), default=1),
        "eos_token_id": Setting("eos_id", or_null(or_list(TOKEN)), default=2),
        "sliding_window": Setting("", or_null(COUNT), default=None),
        "rope_theta": Setting("", POSITIVE, default=10_000.0),
        "rope_scaling": Setting("", or_null(OBJECT), default=None),
        "rope_parameters": Setting("", or_null(OBJECT), default=None),
    },
    fixed={
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
    },
    derive_settings=derive_settings,
    derive_config=derive_config,
    weights={
        "token_embedder/embedding": "model.embed_tokens.weight",
        f"{_HERE}/self_attention_norm/scale": f"{_THERE}.input_layernorm.weight",
        **{
            f"{_HERE}/self_attention/{name}/kernel": (
                f"{_THERE}.self_attn.{name[0]}_proj.weight",
                "(H K) D -> D H K",
            )
            for name in ("query", "key", "value")
        },
        f"{_HERE}/self_attention/out/kernel": (
            f"{_THERE}.self_attn.o_proj.weight",
            "D (H K) -> H K D",
        ),
        f"{_HERE}/feed_forward_norm/scale": f"{_THERE}.post_attention_layernorm.weight",
        f"{_HERE}/feed_forward/wi_0/kernel": (f"{_THERE}.mlp.gate_proj.weight", "F D -> D F"),
        f"{_HERE}/feed_forward/wi_1/kernel": (f"{_THERE}.mlp.up_proj.weight", "F D -> D F"),
        f"{_HERE}/feed_forward/wo/kernel": (f"{_THERE}.mlp.down_proj.weight", "D F -> F D"),
        "decoder/final_norm/scale": "model.norm.weight",
        "lm_head/kernel": ("lm_head.weight", "V D -> D V"),
    },
    # A tied folder may contain a copy.
    aliases={"lm_head.weight": "model.embed_tokens.weight"},
    # Constants in old files.
    unused=tuple(
        f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"
        for layer in range(max(size["layers"] for size in SIZES.values()))
    ),
)
