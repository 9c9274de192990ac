"""GPT-J in Hugging Face's folders."""

from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import (
    COUNT,
    LAYERS,
    POSITIVE,
    TOKEN,
    Setting,
    or_list,
    or_null,
)
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.systems import gpt2
from t5x_like.hf.weight_map import dense, norm
from t5x_like.systems.gpt_j import SIZES

_HERE, _THERE = "decoder/layers/{layer}", "transformer.h.{layer}"


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del names
    return {
        "d_ff": config.get("n_inner") or 4 * settings["d_model"],
        "bos_id": config.get("bos_token_id", 50_256),
        "eos_id": config.get("eos_token_id", 50_256),  # null: texts have no end token
    }


FORMAT = HuggingFaceFormat(
    system="gpt_j",
    model_types={"gptj": "GPTJ"},
    class_suffix="ForCausalLM",
    defaults=SIZES["6b"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "n_positions": Setting("positions", COUNT),
        "n_layer": Setting("layers", LAYERS),
        "n_embd": Setting("d_model", COUNT),
        "n_head": Setting("heads", COUNT),
        "n_inner": Setting("d_ff", or_null(COUNT), default=None),
        "rotary_dim": Setting("rotary_width", COUNT, default=64),
        "layer_norm_epsilon": Setting("norm_epsilon", POSITIVE, default=1e-5),
        "bos_token_id": Setting("bos_id", or_null(TOKEN), default=50_256),
        "eos_token_id": Setting("eos_id", or_null(or_list(TOKEN)), default=50_256),
    },
    other_names=gpt2.OTHER_NAMES,
    fixed={
        "activation_function": "gelu_new",
        "tie_word_embeddings": False,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    multiples={"n_embd": "n_head"},
    derive_settings=_derive_settings,
    weights={
        "token_embedder/embedding": "transformer.wte.weight",
        **norm(f"{_HERE}/norm", f"{_THERE}.ln_1"),
        **{
            f"{_HERE}/self_attention/{name}/kernel": (
                f"{_THERE}.attn.{name[0]}_proj.weight",
                "(H K) D -> D H K",
            )
            for name in ("query", "key", "value")
        },
        f"{_HERE}/self_attention/out/kernel": (
            f"{_THERE}.attn.out_proj.weight",
            "D (H K) -> H K D",
        ),
        **dense(f"{_HERE}/feed_forward/wi", f"{_THERE}.mlp.fc_in"),
        **dense(f"{_HERE}/feed_forward/wo", f"{_THERE}.mlp.fc_out"),
        **norm("decoder/final_norm", "transformer.ln_f"),
        **dense("lm_head", "lm_head"),
    },
    # Constants in old files: the causal mask.
    unused=tuple(
        f"{_THERE.format(layer=layer)}.attn.{name}"
        for layer in range(SIZES["6b"]["layers"])
        for name in ("bias", "masked_bias")
    ),
)
