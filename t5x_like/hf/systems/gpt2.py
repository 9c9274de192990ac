"""GPT-2 in Hugging Face's folders."""

from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import COUNT, LAYERS, RATE, Setting, or_null
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import WeightMap, norm
from t5x_like.systems.gpt2 import SIZES

_HERE, _THERE = "decoder/layers/{layer}", "transformer.h.{layer}"


def _attention() -> WeightMap:
    """Map query, key and value, which are one tensor in the file."""
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


OTHER_NAMES = {
    "max_position_embeddings": "n_positions",
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del names
    return {"d_ff": config.get("n_inner") or 4 * settings["d_model"]}


FORMAT = HuggingFaceFormat(
    system="gpt2",
    model_types={"gpt2": "GPT2"},
    class_suffix="LMHeadModel",
    defaults=SIZES["small"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "n_positions": Setting("positions", COUNT),
        "n_layer": Setting("layers", LAYERS),
        "n_embd": Setting("d_model", COUNT),
        "n_head": Setting("heads", COUNT),
        "n_inner": Setting("d_ff", or_null(COUNT), default=None),
        "resid_pdrop": Setting("dropout", RATE, default=0.1),
        "embd_pdrop": Setting("dropout", RATE, default=0.1),
        "attn_pdrop": Setting("dropout", RATE, default=0.1),
    },
    other_names=OTHER_NAMES,
    fixed={
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    multiples={"n_embd": "n_head"},
    derive_settings=_derive_settings,
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
)
