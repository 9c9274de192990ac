"""GPT-NeoX: Black et al. 2022, "GPT-NeoX-20B" (arXiv:2204.06745), and Pythia, its smaller sizes.

A layer's attention and feed-forward read the same states, and rotary positions rotate a quarter of
each head.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any

import flax.linen as nn

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
from t5x_like.losses import autoregressive
from t5x_like.names import choose
from t5x_like.nn.attention.multi_head import Attention, Position
from t5x_like.nn.attention.positions import Rotary
from t5x_like.nn.blocks import PreNormBlock, TwoNormParallelBlock
from t5x_like.nn.compute import GELU, GELU_TANH
from t5x_like.nn.embeddings import LinearHead, TiedHead, TokenEmbed
from t5x_like.nn.linear import MLP, Initializer, LayerNorm
from t5x_like.nn.networks import Decoder, Tower
from t5x_like.nn.stack import Stack
from t5x_like.systems.system import AttentionConfig, Ends, System, Task, head_width


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ParallelConfig(AttentionConfig):
    """The settings that a GPT-NeoX and a GPT-J have in common."""

    positions: int = 2048  # the longest text in training; longer texts are possible
    layers: int
    d_model: int
    d_ff: int
    heads: int
    norm_epsilon: float = 1e-5
    bos_id: int | None = 0
    eos_id: Ends = 0


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class GptNeoxConfig(ParallelConfig):
    """The settings of a GPT-NeoX."""

    vocab_size: int = 50_304
    rope_theta: float = 10_000.0
    rotary_share: float = 0.25
    parallel: bool = True
    activation: str = "gelu"
    tied_head: bool = False


def _size(layers: int, d_model: int, heads: int, **changes: Any) -> GptNeoxConfig:
    return GptNeoxConfig(
        layers=layers,
        d_model=d_model,
        d_ff=4 * d_model,
        heads=heads,
        **changes,
    )


# Each vocabulary is padded for the number of devices in training.
SIZES: dict[str, GptNeoxConfig] = {
    "20b": _size(44, 6144, 64, vocab_size=50_432, activation="gelu_fast"),
    # Biderman et al. 2023, "Pythia" (arXiv:2304.01373), table 1.
    "pythia_70m": _size(6, 512, 8),
    "pythia_160m": _size(12, 768, 12),
    "pythia_410m": _size(24, 1024, 16),
    "pythia_1b": _size(16, 2048, 8),
    "pythia_1_4b": _size(24, 2048, 16),
    "pythia_2_8b": _size(32, 2560, 32),
    "pythia_6_9b": _size(32, 4096, 32, vocab_size=50_432),
    "pythia_12b": _size(36, 5120, 40, vocab_size=50_688),
}

_ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "gelu": GELU,
    "gelu_fast": GELU_TANH,
}
loss = autoregressive.loss


def build(config: GptNeoxConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 2.1).

    Raises:
        ValueError: `activation` is unknown, or the share `rotary_share` of a head's width is
            odd, below 2, or above the width.
    """
    share, width = config.rotary_share, head_width(config)
    rotated = int(share * width)
    if rotated % 2 or not 0 < rotated <= width:
        raise ValueError(
            f"model.rotary_share={share} of heads of {width} is {rotated}, which must be even, "
            f"and from 2 to {width}"
        )
    input_init = initializers(config)[0]
    return network(
        config,
        make_block=functools.partial(
            TwoNormParallelBlock if config.parallel else PreNormBlock,
            make_norm=make_norm(config),
            make_self_attention=attention(
                config,
                position=Rotary(theta=config.rope_theta, width=rotated),
                use_bias=True,
            ),
            make_feed_forward=feed_forward(
                config, activation=choose("model.activation", config.activation, _ACTIVATIONS)
            ),
            compute=config.compute,
        ),
        make_head=(
            TiedHead if config.tied_head else functools.partial(LinearHead, kernel_init=input_init)
        ),
    )


def initializers(config: ParallelConfig) -> tuple[Initializer, Initializer]:
    """Return the initializers of kernels, and of sublayer output kernels (section 2.1.3)."""
    width, layers = config.d_model, config.layers
    return nn.initializers.normal((2 / (5 * width)) ** 0.5), nn.initializers.normal(
        2 / (layers * width**0.5)
    )


def make_norm(config: ParallelConfig) -> Callable[..., nn.Module]:
    """Return the factory of all norms."""
    return functools.partial(LayerNorm, epsilon=config.norm_epsilon, compute=config.compute)


def network(
    config: ParallelConfig,
    *,
    make_block: Callable[..., nn.Module],
    make_head: Callable[..., nn.Module],
) -> nn.Module:
    """Build a language model whose embeddings have no positions."""
    return Decoder(
        make_embedding=functools.partial(
            TokenEmbed,
            vocab_size=config.vocab_size,
            features=config.d_model,
            embedding_init=initializers(config)[0],
            compute=config.compute,
        ),
        make_decoder=functools.partial(
            Tower,
            make_stack=functools.partial(
                Stack, make_block=make_block, layers=config.layers, compute=config.compute
            ),
            make_norm=make_norm(config),
            compute=config.compute,
        ),
        make_head=make_head,
    )


def attention(
    config: ParallelConfig, *, position: Position, use_bias: bool
) -> Callable[..., nn.Module]:
    """Return a factory of the self-attention of a layer."""
    input_init, output_init = initializers(config)
    return functools.partial(
        Attention,
        heads=config.heads,
        width=head_width(config),
        position=position,
        use_bias=use_bias,
        query_init=input_init,
        kernel_init=input_init,
        out_init=output_init,
        compute=config.compute,
    )


def feed_forward(
    config: ParallelConfig, *, activation: Callable[..., Any]
) -> Callable[..., nn.Module]:
    """Return a factory of the feed-forward sublayer."""
    input_init, output_init = initializers(config)
    return functools.partial(
        MLP,
        hidden=config.d_ff,
        activation=activation,
        use_bias=True,
        wi_init=input_init,
        wo_init=output_init,
        compute=config.compute,
    )


SYSTEM = System(
    name="gpt_neox",
    sizes=SIZES,
    build=build,
    tasks={"": Task(loss=loss, prediction="text")},
    generation={"eos_token_id": "eos_id"},
)


# GPT-NeoX and Pythia in Hugging Face's folders.

_HERE, _THERE = "decoder/layers/{layer}", "gpt_neox.layers.{layer}"
_SHARE = numbers(0, 1)


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del names
    head_width = settings["d_model"] // settings["heads"]
    one_of(None, head_width).check("head_dim", config.get("head_dim"))
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
    ours, theirs = f"{_HERE}/self_attention", f"{_THERE}.attention.query_key_value"
    weights = {}
    for n, name in enumerate(("query", "key", "value")):
        weights[f"{ours}/{name}/kernel"] = (f"{theirs}.weight", f"(H {n}/3 K) D -> D H K")
        weights[f"{ours}/{name}/bias"] = (f"{theirs}.bias", f"(H {n}/3 K) -> H K")
    return weights


HUGGING_FACE = HuggingFaceFormat(
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
