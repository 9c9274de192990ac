"""Pegasus: Zhang et al. 2020, "PEGASUS: Pre-training with Extracted Gap-sentences ..." (ICML 2020).

An encoder-decoder with pre-norm layers, sinusoidal positions and scaled embeddings, to which the
output layer is tied. Other families have the same parts in another order: systems/marian.py and
systems/mbart.py.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
from jaxtyping import Array

from t5x_like.losses import autoregressive
from t5x_like.names import choose
from t5x_like.nn.blocks import PreNormBlock
from t5x_like.nn.embeddings import AddPositions, SinesThenCosines, TiedHead
from t5x_like.nn.networks import EncoderDecoder, Tower
from t5x_like.nn.stack import Stack
from t5x_like.systems import bart
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
    "gelu": bart.GELU,
    "gelu_new": functools.partial(nn.gelu, approximate=True),
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
) -> nn.Module:
    """Build an encoder-decoder with one class of layers, which have biases like BART's.

    Args:
        config: with the keys of SIZES.
        make_block: the class of the layers.
        make_positions: factory of the position embeddings.
        begins: whether each side begins with a layer norm, after the positions.
        ends: whether each side ends with a layer norm.

    Raises:
        ValueError: the activation is unknown.
    """
    make_norm = functools.partial(bart.NORM, compute=config.compute)

    def tower(config: PegasusConfig, *, layers: int, reads_memory: bool) -> Any:
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
                    reads_memory=reads_memory,
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
    return EncoderDecoder(
        make_embedding=bart.embedding(config),
        make_encoder=tower(config, layers=config.encoder_layers, reads_memory=False),
        make_decoder=tower(of_decoder, layers=config.decoder_layers, reads_memory=True),
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
