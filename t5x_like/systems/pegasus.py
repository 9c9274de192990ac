"""Pegasus: Zhang et al. 2020, "PEGASUS: Pre-training with Extracted Gap-sentences ..." (ICML 2020).

An encoder-decoder with pre-norm layers, sinusoidal positions and scaled embeddings, to which the
output layer is tied. Other families have the same parts in another order: systems/marian.py and
systems/mbart.py.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import flax.linen as nn
from jaxtyping import Array

from t5x_like.hf.config_settings import FLAG, TOKEN, Setting, check_multiple, one_of, or_null
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import norm
from t5x_like.losses import autoregressive
from t5x_like.names import choose
from t5x_like.nn.blocks import PreNormBlock
from t5x_like.nn.compute import GELU, GELU_TANH
from t5x_like.nn.embeddings import AddPositions, SinesThenCosines, TiedHead
from t5x_like.nn.networks import EncoderDecoder, Tower
from t5x_like.nn.stack import Stack
from t5x_like.systems import bart
from t5x_like.systems.bart import decoder_sizes
from t5x_like.systems.system import System, Task, adaptation


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PegasusConfig(bart.Seq2SeqConfig):
    """The settings of a Pegasus, a Marian model or an mBART."""

    vocab_size: int = 96_103
    start_id: int = 0
    end_id: int = 1
    padding: int = 0
    positions: int = 1024
    encoder_layers: int = 16
    decoder_layers: int = 16
    d_model: int = 1024
    d_ff: int = 4096
    decoder_d_ff: int = 0
    heads: int = 16
    decoder_heads: int = 0
    activation: str = "relu"
    scale_embeddings: bool = True
    logits_bias: bool = False


# Section 6: 16 + 16 layers, and 96,000 pieces, before which the released code puts 103 ids; the
# scaled embeddings and the positions are also from that code.
SIZES: dict[str, PegasusConfig] = {"large": PegasusConfig()}

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "gelu": GELU,
    "gelu_new": GELU_TANH,
    "swish": nn.swish,
    "silu": nn.swish,
}


def build(config: PegasusConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES.

    Args:
        config: `start_id` is the decoder's first input, `end_id` ends a text. `scale_embeddings`
            multiplies the input embeddings by the square root of their width. `positions` is the
            length of the longest text that Hugging Face's class reads; here it may have any length.

    Raises:
        ValueError: the activation is unknown.
    """
    return network(config, make_block=PreNormBlock, make_positions=sinusoids(config), ends=True)


def sinusoids(config: PegasusConfig) -> Callable[..., nn.Module]:
    """Return a factory of sinusoidal positions."""
    return functools.partial(SinesThenCosines, features=config.d_model, compute=config.compute)


def network(
    config: PegasusConfig,
    *,
    make_block: Callable[..., nn.Module],
    make_positions: Callable[..., nn.Module],
    begins: bool = False,
    ends: bool = False,
    make: Callable[..., nn.Module] = EncoderDecoder,
) -> nn.Module:
    """Build an encoder-decoder with one class of layers, which have biases like BART's.

    Args:
        config: with the keys of SIZES.
        make_block: the class of the layers.
        make_positions: factory of the position embeddings.
        begins: whether each side begins with a layer norm, after the positions.
        ends: whether each side ends with a layer norm.
        make: the class of the network.

    Raises:
        ValueError: the activation is unknown.
    """
    make_norm = functools.partial(bart.NORM, compute=config.compute)

    def tower(config: PegasusConfig, *, layers: int, cross_attention: bool) -> Any:
        return functools.partial(
            Tower,
            make_entrance=functools.partial(
                AddPositions,
                make_positions=make_positions,
                make_norm=make_norm if begins else None,
                scale=config.d_model**0.5 if config.scale_embeddings else 1.0,
            ),
            make_stack=functools.partial(
                Stack,
                make_block=bart.block(
                    config,
                    cross_attention=cross_attention,
                    make_norm=make_norm,
                    make=make_block,
                    activation=choose("model.activation", config.activation, ACTIVATIONS),
                ),
                layers=layers,
                compute=config.compute,
            ),
            make_exit=make_norm if ends else None,
            compute=config.compute,
        )

    of_decoder = dataclasses.replace(config, **bart.decoder_sizes(config))
    return make(
        make_embedding=bart.embedding(config),
        make_encoder=tower(config, layers=config.encoder_layers, cross_attention=False),
        make_decoder=tower(of_decoder, layers=config.decoder_layers, cross_attention=True),
        make_head=functools.partial(TiedHead, use_bias=config.logits_bias),
    )


def declare(
    name: str, sizes: Mapping[str, PegasusConfig], build: Callable[..., nn.Module]
) -> System:
    """Return the declaration of a system whose settings are a `PegasusConfig`."""
    return System(
        name=name,
        sizes=sizes,
        build=build,
        tasks={"": Task(loss=autoregressive.loss, prediction="text")},
        generation={
            "decoder_start_token_id": "start_id",
            "eos_token_id": "end_id",
            "pad_token_id": "padding",
        },
        adapt=functools.partial(adaptation, new=("lm_head/bias",)),
    )


SYSTEM = declare("pegasus", SIZES, build)


# Pegasus in Hugging Face's folders; the folders of Marian and mBART have the same tensors.

_IDS = {"decoder_start_token_id": "start_id", "eos_token_id": "end_id", "pad_token_id": "padding"}
POSITIONS = tuple(f"model.{tower}.embed_positions.weight" for tower in ("encoder", "decoder"))


def derive_settings(config: Settings, settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Return the settings that depend on several in config.json, see `record.DeriveSettings`."""
    del settings
    check_multiple(config, "d_model", "decoder_attention_heads")
    return {"logits_bias": "final_logits_bias" in names}


def derive_config(settings: Settings) -> dict[str, Any]:
    """Return the settings of config.json that depend on several here, see `record.DeriveConfig`."""
    sizes = decoder_sizes(settings)
    return {"decoder_ffn_dim": sizes["d_ff"], "decoder_attention_heads": sizes["heads"]}


def ids(**defaults: int | None) -> dict[str, Setting]:
    """Return the `Setting`s of token ids.

    Args:
        defaults: {our name: id if config.json lacks the setting}.
    """
    return {
        name: Setting(ours, or_null(TOKEN), default=defaults[ours]) for name, ours in _IDS.items()
    }


HUGGING_FACE = HuggingFaceFormat(
    system="pegasus",
    model_types={"pegasus": "Pegasus"},
    class_suffix="ForConditionalGeneration",
    defaults=SIZES["large"],
    settings={
        **{
            name: setting
            for name, setting in bart.HUGGING_FACE.settings.items()
            if name not in _IDS
        },
        "attention_dropout": Setting(
            "dropout", bart.HUGGING_FACE.settings["dropout"].allowed, default=0.0
        ),
        "activation_function": Setting("activation", one_of(*ACTIVATIONS), default="gelu"),
        "scale_embedding": Setting("scale_embeddings", FLAG, default=False),
        **ids(start_id=0, end_id=1, padding=0),
    },
    other_names=bart.HUGGING_FACE.other_names,
    fixed={
        "is_encoder_decoder": True,
        "is_decoder": False,
        "normalize_before": True,
        "normalize_embedding": False,
        "add_final_layer_norm": True,
        "static_position_embeddings": True,
        "tie_word_embeddings": True,
    },
    multiples=bart.HUGGING_FACE.multiples,
    derive_settings=derive_settings,
    derive_config=derive_config,
    weights={
        **{
            path: tensor
            for path, tensor in bart.HUGGING_FACE.weights.items()
            if "head/" not in path
        },
        "lm_head/bias": bart.HUGGING_FACE.weights["lm_head/bias"],
        **norm("encoder/exit", "model.encoder.layer_norm"),
        **norm("decoder/exit", "model.decoder.layer_norm"),
    },
    aliases=bart.HUGGING_FACE.aliases,
    # The sinusoidal position tables, which are computed here.
    unused=(*bart.HUGGING_FACE.unused, *POSITIONS),
)
