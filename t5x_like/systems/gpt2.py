"""GPT-2: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"."""

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any

import flax.linen as nn

from t5x_like.hf.config_settings import COUNT, LAYERS, RATE, Setting, or_null
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import WeightMap, norm
from t5x_like.losses import autoregressive
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.blocks import PreNormBlock
from t5x_like.nn.compute import GELU_TANH
from t5x_like.nn.embeddings import AddPositions, LearnedPositions, TiedHead, TokenEmbed
from t5x_like.nn.linear import MLP, LayerNorm
from t5x_like.nn.networks import Decoder, Tower
from t5x_like.nn.stack import Stack
from t5x_like.systems.system import AttentionConfig, DropoutConfig, System, Task, head_width


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Gpt2Config(DropoutConfig, AttentionConfig):
    """The settings of a GPT-2."""

    vocab_size: int = 50257
    positions: int = 1024
    layers: int
    d_model: int
    d_ff: int
    heads: int


def _size(layers: int, d_model: int, heads: int) -> Gpt2Config:
    return Gpt2Config(layers=layers, d_model=d_model, d_ff=4 * d_model, heads=heads)


# The sizes of table 2, under the names of the released models. The paper's parameter counts leave
# some parameters out.
SIZES: dict[str, Gpt2Config] = {
    "small": _size(12, 768, 12),
    "medium": _size(24, 1024, 16),
    "large": _size(36, 1280, 20),
    "xl": _size(48, 1600, 25),
}

NORMAL = nn.initializers.normal
NORM = functools.partial(LayerNorm, epsilon=1e-5)
loss = autoregressive.loss


def build(config: Gpt2Config) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 2.3)."""
    make_stack = functools.partial(
        Stack,
        make_block=block(config, head_width=head_width(config)),
        layers=config.layers,
        compute=config.compute,
    )
    return network(config, make_stack=make_stack)


def network(config: Gpt2Config, *, make_stack: Callable[..., nn.Module]) -> nn.Module:
    """Return a language model with learned positions, whose layers `make_stack` makes."""
    tower = functools.partial(
        Tower,
        make_entrance=functools.partial(
            AddPositions,
            make_positions=functools.partial(
                LearnedPositions,
                length=config.positions,
                features=config.d_model,
                embedding_init=NORMAL(0.01),
                compute=config.compute,
            ),
        ),
        make_stack=make_stack,
        make_norm=functools.partial(NORM, compute=config.compute),
        compute=config.compute,
    )
    return Decoder(
        make_embedding=functools.partial(
            TokenEmbed,
            vocab_size=config.vocab_size,
            features=config.d_model,
            embedding_init=NORMAL(0.02),
            compute=config.compute,
        ),
        make_decoder=tower,
        make_head=TiedHead,
    )


def block(
    config: Gpt2Config, *, head_width: int, attention: Callable[..., nn.Module] = Attention
) -> Callable[..., nn.Module]:
    """Return a factory of a layer; `attention` is a factory of its `Attention`."""
    # The kernels of sublayer outputs have a smaller initialization, since the residual stream is
    # the sum of 2N outputs (section 2.3).
    residual = NORMAL(0.02 * (2 * config.layers) ** -0.5)
    return functools.partial(
        PreNormBlock,
        make_norm=functools.partial(NORM, compute=config.compute),
        make_self_attention=functools.partial(
            attention,
            heads=config.heads,
            width=head_width,
            use_bias=True,
            query_init=NORMAL(0.02),
            kernel_init=NORMAL(0.02),
            out_init=residual,
            compute=config.compute,
        ),
        make_feed_forward=functools.partial(
            MLP,
            hidden=config.d_ff,
            activation=GELU_TANH,
            use_bias=True,
            wi_init=NORMAL(0.02),
            wo_init=residual,
            compute=config.compute,
        ),
        compute=config.compute,
    )


SYSTEM = System(
    name="gpt2",
    sizes=SIZES,
    build=build,
    older_defaults={"dropout_broadcast": True},
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
)


# GPT-2 in Hugging Face's folders.

_HERE, _THERE = "decoder/layers/{layer}", "transformer.h.{layer}"


def _attention() -> WeightMap:
    """Map query, key and value, which are one tensor in the file."""
    ours, theirs = f"{_HERE}/self_attention", f"{_THERE}.attn.c_attn"
    weights = {}
    for n, name in enumerate(("query", "key", "value")):
        weights[f"{ours}/{name}/kernel"] = (f"{theirs}.weight", f"D ({n}/3 H K) -> D H K")
        weights[f"{ours}/{name}/bias"] = (f"{theirs}.bias", f"({n}/3 H K) -> H K")
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


HUGGING_FACE = HuggingFaceFormat(
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
