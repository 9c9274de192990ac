"""GPT-J: Wang and Komatsuzaki 2021, "GPT-J-6B", trained with their mesh-transformer-jax."""

import dataclasses
import functools
from collections.abc import Collection
from typing import Any

import flax.linen as nn

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
from t5x_like.hf.weight_map import dense, norm
from t5x_like.losses import autoregressive
from t5x_like.nn.attention.positions import InterleavedRotary
from t5x_like.nn.blocks import ParallelBlock
from t5x_like.nn.compute import GELU_TANH
from t5x_like.nn.embeddings import LinearHead
from t5x_like.systems import gpt2, gpt_neox
from t5x_like.systems.system import Ends, System, Task, head_width


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class GptJConfig(gpt_neox.ParallelConfig):
    """The settings of a GPT-J."""

    vocab_size: int = 50_400
    layers: int = 28
    d_model: int = 4096
    d_ff: int = 16_384
    heads: int = 16
    rotary_width: int = 64
    bos_id: int | None = 50_256
    eos_id: Ends = 50_256


SIZES: dict[str, GptJConfig] = {"6b": GptJConfig()}


def build(config: GptJConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES: GPT-NeoX's with one norm per layer.

    Raises:
        ValueError: `rotary_width` is odd, below 2, or wider than a head.
    """
    rotated, width = config.rotary_width, head_width(config)
    if rotated % 2 or not 0 < rotated <= width:
        raise ValueError(f"model.rotary_width={rotated} must be even, and from 2 to {width}")
    make_block = functools.partial(
        ParallelBlock,
        make_norm=gpt_neox.make_norm(config),
        make_self_attention=gpt_neox.attention(
            config, position=InterleavedRotary(width=rotated), use_bias=False
        ),
        make_feed_forward=gpt_neox.feed_forward(config, activation=GELU_TANH),
        compute=config.compute,
    )
    make_head = functools.partial(
        LinearHead, use_bias=True, kernel_init=gpt_neox.initializers(config)[0]
    )
    return gpt_neox.network(config, make_block=make_block, make_head=make_head)


SYSTEM = System(
    name="gpt_j",
    sizes=SIZES,
    build=build,
    tasks={"": Task(loss=autoregressive.loss, prediction="text")},
    generation={"eos_token_id": "eos_id"},
)


# GPT-J in Hugging Face's folders.

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


HUGGING_FACE = HuggingFaceFormat(
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
