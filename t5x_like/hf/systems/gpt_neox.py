"""GPT-NeoX and Pythia in Hugging Face's folders."""

from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import (
    COUNT,
    FLAG,
    LAYERS,
    OBJECT,
    POSITIVE,
    TOKEN,
    Setting,
    numbers,
    one_of,
    or_list,
    or_null,
)
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import WeightMap, dense, norm
from t5x_like.systems.gpt_neox import SIZES

_HERE, _THERE = "decoder/layers/{layer}", "gpt_neox.layers.{layer}"
_SHARE = numbers(0, 1)


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del names
    own = settings["d_model"] // settings["heads"]
    one_of(None, own).check("head_dim", config.get("head_dim"))
    # transformers 5 has one setting, older versions have two.
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    one_of("default").check("rope_parameters.rope_type", kind)
    theta: Any = rope.get("rope_theta", config.get("rotary_emb_base", 10_000))
    share: Any = rope.get("partial_rotary_factor", config.get("rotary_pct", 0.25))
    POSITIVE.check("rope_parameters.rope_theta", theta)
    _SHARE.check("rope_parameters.partial_rotary_factor", share)
    return {
        "rope_theta": float(theta),
        "rotary_share": float(share),
        "bos_id": config.get("bos_token_id", 0),
        "eos_id": config.get("eos_token_id", 2),  # null: texts have no end token
    }


def _derive_config(settings: Settings) -> dict[str, Any]:
    theta, share = settings["rope_theta"], settings["rotary_share"]
    return {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": theta,
            "partial_rotary_factor": share,
        },
        # Read by transformers before version 5.
        "rotary_emb_base": theta,
        "rotary_pct": share,
    }


def _attention() -> WeightMap:
    """Map query, key and value to one tensor, in which each of the H heads has all three."""
    here, there = f"{_HERE}/self_attention", f"{_THERE}.attention.query_key_value"
    weights = {}
    for n, name in enumerate(("query", "key", "value")):
        weights[f"{here}/{name}/kernel"] = (f"{there}.weight", f"(H {n}/3 K) D -> D H K")
        weights[f"{here}/{name}/bias"] = (f"{there}.bias", f"(H {n}/3 K) -> H K")
    return weights


FORMAT = HuggingFaceFormat(
    system="gpt_neox",
    model_types={"gpt_neox": "GPTNeoX"},
    class_suffix="ForCausalLM",
    defaults=SIZES["20b"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "max_position_embeddings": Setting("positions", COUNT),
        "num_hidden_layers": Setting("layers", LAYERS),
        "hidden_size": Setting("d_model", COUNT),
        "intermediate_size": Setting("d_ff", COUNT),
        "num_attention_heads": Setting("heads", COUNT),
        "layer_norm_eps": Setting("norm_epsilon", POSITIVE, default=1e-5),
        "use_parallel_residual": Setting("parallel", FLAG, default=True),
        "hidden_act": Setting("activation", one_of("gelu", "gelu_fast"), default="gelu"),
        "tie_word_embeddings": Setting("tied_head", FLAG, default=False),
        "bos_token_id": Setting("bos_id", or_null(TOKEN), default=0),
        "eos_token_id": Setting("eos_id", or_null(or_list(TOKEN)), default=2),
        "rotary_pct": Setting("", _SHARE, default=0.25),
        "rotary_emb_base": Setting("", POSITIVE, default=10_000),
        "rope_scaling": Setting("", or_null(OBJECT), default=None),
        "rope_parameters": Setting("", or_null(OBJECT), default=None),
    },
    fixed={"attention_bias": True, "attention_dropout": 0.0, "hidden_dropout": 0.0},
    multiples={"hidden_size": "num_attention_heads"},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights={
        "token_embedder/embedding": "gpt_neox.embed_in.weight",
        **norm(f"{_HERE}/self_attention_norm", f"{_THERE}.input_layernorm"),
        **_attention(),
        f"{_HERE}/self_attention/out/kernel": (
            f"{_THERE}.attention.dense.weight",
            "D (H K) -> H K D",
        ),
        f"{_HERE}/self_attention/out/bias": f"{_THERE}.attention.dense.bias",
        **norm(f"{_HERE}/feed_forward_norm", f"{_THERE}.post_attention_layernorm"),
        **dense(f"{_HERE}/feed_forward/wi", f"{_THERE}.mlp.dense_h_to_4h"),
        **dense(f"{_HERE}/feed_forward/wo", f"{_THERE}.mlp.dense_4h_to_h"),
        **norm("decoder/final_norm", "gpt_neox.final_layer_norm"),
        "lm_head/kernel": ("embed_out.weight", "V D -> D V"),
    },
    # A tied folder may contain a copy.
    aliases={"embed_out.weight": "gpt_neox.embed_in.weight"},
    # Constants in old files: the causal mask, the frequencies.
    unused=tuple(
        f"gpt_neox.layers.{layer}.attention.{name}"
        for layer in range(max(size["layers"] for size in SIZES.values()))
        for name in ("bias", "masked_bias", "rotary_emb.inv_freq")
    ),
)
