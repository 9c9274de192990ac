"""GPT-2 in Hugging Face's folders."""

from collections.abc import Collection, Mapping
from typing import Any

from t5x_like.hf.layer_weights import norm
from t5x_like.hf.record import HuggingFaceFormat
from t5x_like.hf.settings import read_settings, write_settings
from t5x_like.hf.weight_map import WeightMap
from t5x_like.systems.gpt2 import SIZES

_HERE, _THERE = "decoder/layers/{layer}", "transformer.h.{layer}"


def _attention() -> WeightMap:
    """The weights of query, key and value, which are one tensor in the file."""
    here, there = f"{_HERE}/self_attention", f"{_THERE}.attn.c_attn"
    weights = {}
    for n, name in enumerate(("query", "key", "value")):
        weights[f"{here}/{name}/kernel"] = (f"{there}.weight", f"D ({n}/3 H K) -> D H K")
        weights[f"{here}/{name}/bias"] = (f"{there}.bias", f"({n}/3 H K) -> H K")
    return weights


# Matrices are [inputs, outputs], as here.
LAYER_WEIGHTS: WeightMap = {
    **norm(f"{_HERE}/self_attention_norm", f"{_THERE}.ln_1"),
    **_attention(),
    f"{_HERE}/self_attention/out/kernel": (f"{_THERE}.attn.c_proj.weight", "(H K) D -> H K D"),
    f"{_HERE}/self_attention/out/bias": f"{_THERE}.attn.c_proj.bias",
    **norm(f"{_HERE}/feed_forward_norm", f"{_THERE}.ln_2"),
    f"{_HERE}/feed_forward/wi/kernel": f"{_THERE}.mlp.c_fc.weight",
    f"{_HERE}/feed_forward/wi/bias": f"{_THERE}.mlp.c_fc.bias",
    f"{_HERE}/feed_forward/wo/kernel": f"{_THERE}.mlp.c_proj.weight",
    f"{_HERE}/feed_forward/wo/bias": f"{_THERE}.mlp.c_proj.bias",
}
_SETTINGS = {
    "vocab_size": "vocab_size",
    "n_positions": "positions",
    "n_layer": "layers",
    "n_embd": "d_model",
    "n_head": "heads",
}
_FIXED = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
_DROPOUT = ("resid_pdrop", "embd_pdrop", "attn_pdrop")


def _from_config(config: Mapping[str, Any], *, names: Collection[str]) -> dict[str, Any]:
    del names
    ours = read_settings(config, settings=_SETTINGS, fixed=_FIXED, dropout=_DROPOUT)
    return SIZES["small"] | ours | {"d_ff": config.get("n_inner") or 4 * ours["d_model"]}


def _to_config(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **write_settings(config, settings=_SETTINGS, fixed=_FIXED, dropout=_DROPOUT),
        "n_inner": config["d_ff"],
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
    }


FORMAT = HuggingFaceFormat(
    system="gpt2",
    model_types=("gpt2",),
    weights={
        "token_embedder/embedding": "transformer.wte.weight",
        "decoder/entrance/position/embedding": "transformer.wpe.weight",
        **LAYER_WEIGHTS,
        **norm("decoder/final_norm", "transformer.ln_f"),
    },
    aliases={
        "lm_head.weight": "transformer.wte.weight",  # a copy
        **{
            f"{part}.*": f"transformer.{part}.*" for part in ("wte", "wpe", "h", "ln_f")
        },  # headless
    },
    # Constants in old files: the causal mask.
    unused=tuple(
        f"{prefix}h.{layer}.attn.{name}"
        for prefix in ("", "transformer.")
        for layer in range(max(size["layers"] for size in SIZES.values()))
        for name in ("bias", "masked_bias")
    ),
    from_config=_from_config,
    to_config=_to_config,
)
