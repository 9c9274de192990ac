"""LLaMA and Mistral in Hugging Face's folders."""

from collections.abc import Collection, Mapping
from typing import Any

from t5x_like.hf.record import HuggingFaceFormat
from t5x_like.hf.settings import read_settings
from t5x_like.models.attention.rotary import select_scaling
from t5x_like.systems.llama import SIZES

_HERE, _THERE = "decoder/layers/{layer}", "model.layers.{layer}"

_SETTINGS = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "positions",
    "num_hidden_layers": "layers",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_attention_heads": "heads",
    "rms_norm_eps": "norm_epsilon",
}
_FIXED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
}


def _from_config(config: Mapping[str, Any], *, names: Collection[str]) -> dict[str, Any]:
    del names
    heads = config["num_attention_heads"]
    sliding = config["model_type"] == "mistral"
    return (
        SIZES["7b"]
        | read_settings(config, settings=_SETTINGS, fixed=_FIXED)
        | _read_rotary(config)
        | {
            "kv_heads": config.get("num_key_value_heads") or heads,
            "head_width": config.get("head_dim") or config["hidden_size"] // heads,
            "window": (config.get("sliding_window") or 0) if sliding else 0,
            "tied_head": config.get("tie_word_embeddings", False),
            "bos_id": config.get("bos_token_id", 1),
            "eos_id": config.get("eos_token_id", 2),
        }
    )


def _read_rotary(config: Mapping[str, Any]) -> dict[str, Any]:
    """Theta and scaling: one setting of transformers 5, two of older versions."""
    found = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = found.pop("rope_theta", None) or config.get("rope_theta", 10_000.0)
    kinds = [found.pop(name, None) for name in ("rope_type", "type")]
    kind = next(filter(None, kinds), "default")
    scaling = {} if kind == "default" else {"rope_type": kind, **found}
    select_scaling(scaling)  # raises where the kind is not supported
    return {"rope_theta": theta, "rope_scaling": scaling}


def _to_config(config: Mapping[str, Any]) -> dict[str, Any]:
    own: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **_FIXED}
    if config["window"]:
        own = {
            "model_type": "mistral",
            "architectures": ["MistralForCausalLM"],
            "hidden_act": _FIXED["hidden_act"],
            "sliding_window": config["window"],
        }
    rotary = {"rope_type": "default", **config["rope_scaling"], "rope_theta": config["rope_theta"]}
    return {
        **own,
        **{key: config[name] for key, name in _SETTINGS.items()},
        "num_key_value_heads": config["kv_heads"],
        "head_dim": config["head_width"],
        "tie_word_embeddings": config["tied_head"],
        "bos_token_id": config["bos_id"],
        "eos_token_id": config["eos_id"],
        "rope_parameters": rotary,
        # Where transformers before version 5 looks.
        "rope_theta": config["rope_theta"],
        "rope_scaling": dict(config["rope_scaling"]) or None,
    }


FORMAT = HuggingFaceFormat(
    system="llama",
    model_types=("llama", "mistral"),
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
    from_config=_from_config,
    to_config=_to_config,
)
