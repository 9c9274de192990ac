"""LLaMA: Touvron et al. 2023, "LLaMA: Open and Efficient Foundation Language Models".

With the grouped-query attention and long contexts of LLaMA 2 and 3, and Mistral's window.
"""

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from t5x_like.losses import autoregressive
from t5x_like.models.attention.multi_head import Attention, select_core
from t5x_like.models.attention.rotary import Rotary, select_scaling
from t5x_like.models.blocks.residual import PreNormBlock
from t5x_like.models.blocks.stack import Stack
from t5x_like.models.embeddings.tokens import LinearHead, TiedHead, TokenEmbed
from t5x_like.models.feed_forward.mlp import GLU
from t5x_like.models.networks.decoder import Decoder
from t5x_like.models.networks.tower import Tower
from t5x_like.models.norms import RMSNorm
from t5x_like.systems.system import System, Task


def _size(layers: int, d_model: int, d_ff: int, heads: int, **changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": 32000,
        "positions": 2048,  # in training: nothing here ends there
        "layers": layers,
        "d_model": d_model,
        "d_ff": d_ff,
        "heads": heads,
        "kv_heads": heads,
        "head_width": d_model // heads,
        "norm_epsilon": 1e-6,
        "rope_theta": 10_000.0,
        "rope_scaling": {},
        "window": 0,  # of Mistral; 0 is none
        "tied_head": False,
        "bos_id": 1,
        "eos_id": 2,
        "attention": "auto",
        "dtype": "float32",
        "loop": "scan",
        "remat": "none",
        "embedding_lookup": "gather",
    } | changes


_LLAMA_2 = {"positions": 4096, "norm_epsilon": 1e-5}
_LLAMA_3 = {
    "vocab_size": 128_256,
    "positions": 8192,
    "norm_epsilon": 1e-5,
    "rope_theta": 500_000.0,
    "kv_heads": 8,
    "bos_id": 128_000,
    "eos_id": 128_001,
}
_MISTRAL = {"positions": 32_768, "norm_epsilon": 1e-5, "kv_heads": 8, "window": 4096}

# Table 2, with d_ff of the released models: two thirds of 4 d_model, up to a multiple of 256.
SIZES: dict[str, dict[str, Any]] = {
    "7b": _size(32, 4096, 11008, 32),
    "13b": _size(40, 5120, 13824, 40),
    "33b": _size(60, 6656, 17920, 52),
    "65b": _size(80, 8192, 22016, 64),
    # Touvron et al. 2023, "Llama 2"; Grattafiori et al. 2024; Jiang et al. 2023.
    "2_7b": _size(32, 4096, 11008, 32, **_LLAMA_2),
    "2_70b": _size(80, 8192, 28672, 64, **_LLAMA_2, kv_heads=8),
    "3_8b": _size(32, 4096, 14336, 32, **_LLAMA_3),
    "3_70b": _size(80, 8192, 28672, 64, **_LLAMA_3),
    "mistral_7b": _size(32, 4096, 14336, 32, **_MISTRAL),
}

NORMAL = nn.initializers.normal(0.02)
loss = autoregressive.loss


def build(config: Mapping[str, Any]) -> nn.Module:
    """The network of a config with the keys of SIZES (section 2.2)."""
    dtype = jnp.dtype(config["dtype"])
    make_norm = functools.partial(RMSNorm, epsilon=config["norm_epsilon"], dtype=dtype)
    tower = functools.partial(
        Tower,
        make_stack=functools.partial(
            Stack,
            make_block=functools.partial(
                PreNormBlock,
                make_norm=make_norm,
                make_self_attention=_attention(config),
                make_feed_forward=functools.partial(
                    GLU,
                    hidden=config["d_ff"],
                    activation=nn.silu,
                    wi_init=NORMAL,
                    wo_init=NORMAL,
                    dtype=dtype,
                ),
            ),
            layers=config["layers"],
            loop=config["loop"],
            remat=config["remat"],
        ),
        make_norm=make_norm,
    )
    return Decoder(
        make_embedding=functools.partial(
            TokenEmbed,
            vocab_size=config["vocab_size"],
            features=config["d_model"],
            lookup=config["embedding_lookup"],
            embedding_init=NORMAL,
            dtype=dtype,
        ),
        make_decoder=tower,
        make_head=(
            TiedHead if config["tied_head"] else functools.partial(LinearHead, kernel_init=NORMAL)
        ),
    )


def _attention(config: Mapping[str, Any]) -> Callable[..., nn.Module]:
    dtype = jnp.dtype(config["dtype"])
    scaling = select_scaling(config["rope_scaling"])
    return functools.partial(
        Attention,
        heads=config["heads"],
        kv_heads=config["kv_heads"],
        width=config["head_width"],
        position=Rotary(theta=config["rope_theta"], scaling=scaling),
        window=config["window"] or None,
        core=select_core(config["attention"], dtype=dtype, dropout=0.0),
        query_init=NORMAL,
        kernel_init=NORMAL,
        out_init=NORMAL,
        dtype=dtype,
    )


SYSTEM = System(
    name="llama",
    sizes=SIZES,
    build=build,
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
)

# Hugging Face's names: the map of hf/weight_map.py, and settings both ways.

MODEL_TYPES = ("llama", "mistral")

_HERE, _THERE = "decoder/layers/{layer}", "model.layers.{layer}"

WEIGHTS: dict[str, str | tuple[str, str]] = {
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
}
# A tied folder may hold a copy.
WEIGHT_ALIASES = {"lm_head.weight": "model.embed_tokens.weight"}
# Constants of old files.
UNUSED_WEIGHTS = tuple(
    f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"
    for layer in range(max(size["layers"] for size in SIZES.values()))
)

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


def generation(config: Mapping[str, Any]) -> dict[str, Any]:
    """What ends a text that the model writes."""
    return {"eos_token_id": config["eos_id"]}


def from_hf_config(config: Mapping[str, Any], *, names: Collection[str]) -> dict[str, Any]:
    """The settings of `build` for a Hugging Face config.json of `llama` or `mistral`.

    Args:
        names: of the tensors in its files, which are not needed here.

    Raises:
        ValueError: a setting is missing, or asks for what this LLaMA does not have.
    """
    del names
    for key in _SETTINGS:
        if key not in config:
            raise ValueError(f"config.json has no {key}")
    for key, value in _FIXED.items():
        if config.get(key, value) != value:
            raise ValueError(f"config.json has {key}={config[key]!r}; allowed: {value!r}")
    heads = config["num_attention_heads"]
    sliding = config["model_type"] == "mistral"
    return (
        SIZES["7b"]
        | {name: config[key] for key, name in _SETTINGS.items()}
        | _from_hf_rotary(config)
        | {
            "kv_heads": config.get("num_key_value_heads") or heads,
            "head_width": config.get("head_dim") or config["hidden_size"] // heads,
            "window": (config.get("sliding_window") or 0) if sliding else 0,
            "tied_head": config.get("tie_word_embeddings", False),
            "bos_id": config.get("bos_token_id", 1),
            "eos_id": config.get("eos_token_id", 2),
        }
    )


def _from_hf_rotary(config: Mapping[str, Any]) -> dict[str, Any]:
    """Theta and scaling, which transformers 5 writes together and older ones apart."""
    told = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = told.pop("rope_theta", None) or config.get("rope_theta", 10_000.0)
    kinds = [told.pop(name, None) for name in ("rope_type", "type")]
    kind = next(filter(None, kinds), "default")
    scaling = {} if kind == "default" else {"rope_type": kind, **told}
    select_scaling(scaling)  # to say at once what is not here
    return {"rope_theta": theta, "rope_scaling": scaling}


def to_hf_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json that makes Hugging Face build the network of a config.

    It is that of a `mistral` where there is a window, else of a `llama`.
    """
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
        # As transformers before 5 reads it.
        "rope_theta": config["rope_theta"],
        "rope_scaling": dict(config["rope_scaling"]) or None,
    }
