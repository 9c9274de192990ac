"""LLaMA: Touvron et al. 2023, "LLaMA: Open and Efficient Foundation Language Models".

It includes the grouped-query attention and long contexts of LLaMA 2 and 3, and Mistral's sliding
window.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import flax.linen as nn
from jaxtyping import Array

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
from t5x_like.losses import autoregressive
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import Rotary, select_scaling
from t5x_like.nn.blocks import PreNormBlock
from t5x_like.nn.embeddings import LinearHead, TiedHead, TokenEmbed
from t5x_like.nn.linear import GLU, RMSNorm
from t5x_like.nn.networks import Decoder, Tower
from t5x_like.nn.stack import Stack
from t5x_like.systems.system import AttentionConfig, Ends, System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class UnquantizedLlamaConfig(AttentionConfig):
    """The settings that a LLaMA and a Mixtral have in common."""

    vocab_size: int = 32000
    positions: int = 2048  # the longest text in training; longer texts are possible
    layers: int
    d_model: int
    d_ff: int
    heads: int
    kv_heads: int
    head_width: int
    norm_epsilon: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    window: int = 0  # Mistral's sliding window; 0 for none
    tied_head: bool = False
    bos_id: int | None = 1
    eos_id: Ends = 2


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LlamaConfig(UnquantizedLlamaConfig):
    """The settings of a LLaMA."""

    quantization: str = "none"


def _size(layers: int, d_model: int, d_ff: int, heads: int, **changes: Any) -> LlamaConfig:
    sizes = {"kv_heads": heads, "head_width": d_model // heads, **changes}
    return LlamaConfig(layers=layers, d_model=d_model, d_ff=d_ff, heads=heads, **sizes)


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

# Table 2, with d_ff of the released models: 2/3 of 4 d_model, rounded up to a multiple of 256.
SIZES: dict[str, LlamaConfig] = {
    "7b": _size(32, 4096, 11008, 32),
    "13b": _size(40, 5120, 13824, 40),
    "33b": _size(60, 6656, 17920, 52),
    "65b": _size(80, 8192, 22016, 64, norm_epsilon=1e-5),  # as released; the others have 1e-6
    # Touvron et al. 2023, "Llama 2"; Grattafiori et al. 2024; Jiang et al. 2023.
    "2_7b": _size(32, 4096, 11008, 32, **_LLAMA_2),
    "2_70b": _size(80, 8192, 28672, 64, **_LLAMA_2, kv_heads=8),
    "3_8b": _size(32, 4096, 14336, 32, **_LLAMA_3),
    "3_70b": _size(80, 8192, 28672, 64, **_LLAMA_3),
    "mistral_7b": _size(32, 4096, 14336, 32, **_MISTRAL),
}

NORMAL = nn.initializers.normal(0.02)
loss = autoregressive.loss


def build(config: LlamaConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 2.2).

    Raises:
        ValueError: the kind of `rope_scaling` is unknown.
    """
    make_norm = functools.partial(RMSNorm, epsilon=config.norm_epsilon, compute=config.compute)
    return network(
        config,
        make_norm=make_norm,
        make_attention=attention(config),
        make_feed_forward=feed_forward(config),
    )


def network(
    config: LlamaConfig,
    *,
    make_norm: Callable[..., nn.Module],
    make_attention: Callable[..., nn.Module],
    make_feed_forward: Callable[..., nn.Module],
    make_entrance: Callable[..., nn.Module] | None = None,
) -> nn.Module:
    """Build a pre-norm language model.

    Args:
        config: the settings of everything that the factories do not make.
        make_norm: factory of all norms.
        make_attention, make_feed_forward: factories of the sublayers.
        make_entrance: see `Tower`.
    """
    tower = functools.partial(
        Tower,
        make_entrance=make_entrance,
        make_stack=functools.partial(
            Stack,
            make_block=functools.partial(
                PreNormBlock,
                make_norm=make_norm,
                make_self_attention=make_attention,
                make_feed_forward=make_feed_forward,
                compute=config.compute,
            ),
            layers=config.layers,
            compute=config.compute,
        ),
        make_norm=make_norm,
        compute=config.compute,
    )
    return Decoder(
        make_embedding=functools.partial(
            TokenEmbed,
            vocab_size=config.vocab_size,
            features=config.d_model,
            embedding_init=NORMAL,
            compute=config.compute,
        ),
        make_decoder=tower,
        make_head=(
            TiedHead if config.tied_head else functools.partial(LinearHead, kernel_init=NORMAL)
        ),
    )


def attention(config: LlamaConfig, *, use_bias: tuple[str, ...] = ()) -> Callable[..., nn.Module]:
    """Return a factory of grouped-query attention with rotary positions.

    Args:
        use_bias: see `Attention`.

    Raises:
        ValueError: the kind of `rope_scaling` is unknown.
    """
    scaling = select_scaling(config.rope_scaling)
    return functools.partial(
        Attention,
        heads=config.heads,
        kv_heads=config.kv_heads,
        width=config.head_width,
        position=Rotary(theta=config.rope_theta, scaling=scaling),
        window=config.window or None,
        use_bias=use_bias,
        query_init=NORMAL,
        kernel_init=NORMAL,
        out_init=NORMAL,
        compute=config.compute,
    )


def feed_forward(
    config: LlamaConfig, *, activation: Callable[[Array], Array] = nn.silu
) -> Callable[..., nn.Module]:
    """Return a factory of a gated feed-forward sublayer; `activation` is applied to the gate."""
    return functools.partial(
        GLU,
        hidden=config.d_ff,
        activation=activation,
        wi_init=NORMAL,
        wo_init=NORMAL,
        compute=config.compute,
    )


SYSTEM = System(
    name="llama",
    sizes=SIZES,
    build=build,
    older_defaults={"quantization": "none"},
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
    generation={"eos_token_id": "eos_id"},
)


# LLaMA and Mistral in Hugging Face's folders.

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
    names = [name for name in ("rope_parameters", "rope_scaling") if config.get(name)]
    rotary = [_read_rope(name, config) for name in names or ("rope_parameters",)]
    if rotary[0] != rotary[-1]:
        raise ValueError(
            f"config.json has rope_parameters={config['rope_parameters']!r} and another "
            f"rope_scaling={config['rope_scaling']!r}; allowed: one of them"
        )
    return rotary[0]


def _read_rope(setting: str, config: Settings) -> dict[str, Any]:
    values = dict(config.get(setting) or {})
    kinds = [values.pop(name, None) for name in ("rope_type", "type")]
    kind = next(filter(None, kinds), "default")
    TEXT.check(f"{setting}.rope_type", kind)
    for name, value in values.items():
        POSITIVE.check(f"{setting}.{name}", value)
    theta = values.pop("rope_theta", None) or config.get("rope_theta", 10_000.0)
    scaling = {} if kind == "default" else {"rope_type": kind, **values}
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


HUGGING_FACE = HuggingFaceFormat(
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
    aliases={
        "lm_head.weight": "model.embed_tokens.weight",
        # Headless.
        **{f"{part}.*": f"model.{part}.*" for part in ("embed_tokens", "layers", "norm")},
    },
    # Constants in old files.
    unused=tuple(
        f"{prefix}layers.{layer}.self_attn.rotary_emb.inv_freq"
        for prefix in ("", "model.")
        for layer in range(max(size["layers"] for size in SIZES.values()))
    ),
)
