"""BigBird-Pegasus: the encoder-decoder of Zaheer et al. 2020 (arXiv:2007.14062), section 4.1."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn

from t5x_like.losses import autoregressive
from t5x_like.nn.attention.block_sparse import BlockSparseAttention
from t5x_like.nn.attention.cores import dense_core
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.blocks import PreNormBlock
from t5x_like.nn.embeddings import AddPositions, LearnedPositions, TiedHead, TokenEmbed
from t5x_like.nn.networks import EncoderDecoder, Tower
from t5x_like.nn.norms import LayerNorm
from t5x_like.nn.stack import PatternBlock, Stack
from t5x_like.systems import bart, bert, bigbird
from t5x_like.systems.system import System, Task, adaptation


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BigBirdPegasusConfig(bigbird.PatternConfig, bart.Seq2SeqConfig):
    """The settings of a BigBird-Pegasus, see `build`."""

    vocab_size: int = 96103
    start_id: int = 2
    end_id: int = 1
    padding: int = 0
    positions: int = 4096
    encoder_layers: int = 16
    decoder_layers: int = 16
    d_model: int = 1024
    d_ff: int = 4096
    heads: int = 16
    attention_bias: bool = False
    logits_bias: bool = False


# Appendix E.5, table 17; the vocabulary, the start token and attention without biases are from the
# released code.
SIZES: dict[str, BigBirdPegasusConfig] = {"large": BigBirdPegasusConfig()}

NORM = functools.partial(LayerNorm, epsilon=1e-5)
loss = autoregressive.loss


def build(config: BigBirdPegasusConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES: Pegasus with a sparse encoder.

    Args:
        config: for `attention_parts`, `block`, `random` and `random_blocks`, which describe the
            encoder, see `bigbird.build`; `attention` is the implementation of the decoder's dense
            attention. `start_id` is the decoder's first input.

    Raises:
        ValueError: the attention or kind of random blocks is unknown, `block` is below 1, or
            `random` is negative.
    """
    return EncoderDecoder(
        make_embedding=functools.partial(
            TokenEmbed,
            vocab_size=config.vocab_size,
            features=config.d_model,
            embedding_init=bert.INIT,
            compute=config.compute,
        ),
        make_encoder=encoder(config),
        make_decoder=decoder(config),
        make_head=functools.partial(TiedHead, use_bias=config.logits_bias),
        any_padding=False,
    )


def encoder(config: BigBirdPegasusConfig) -> Callable[..., nn.Module]:
    """Return a factory of the encoder: pre-norm layers with block-sparse attention."""
    attention = functools.partial(
        _attention(config, BlockSparseAttention),
        pattern=bigbird.pattern(config),
        compute=dataclasses.replace(config.compute, core=dense_core),
    )
    block = functools.partial(PatternBlock, make_self_attention=attention, **_layer(config))
    stack = bigbird.stack(
        config,
        block,
        sparse=bigbird.pattern(config),
        layers=config.encoder_layers,
        heads=config.heads,
    )
    return _tower(config, stack)


def decoder(config: BigBirdPegasusConfig) -> Callable[..., nn.Module]:
    """Return a factory of the decoder: pre-norm layers with dense self- and cross-attention."""
    attention = _attention(config, Attention)
    block = functools.partial(
        PreNormBlock,
        make_self_attention=attention,
        make_cross_attention=attention,
        **_layer(config),
    )
    stack = functools.partial(
        Stack, make_block=block, layers=config.decoder_layers, compute=config.compute
    )
    return _tower(config, stack)


def _attention(
    config: BigBirdPegasusConfig, make: Callable[..., nn.Module]
) -> Callable[..., nn.Module]:
    return functools.partial(
        make,
        heads=config.heads,
        width=config.d_model // config.heads,
        use_bias=config.attention_bias,
        query_init=bert.INIT,
        kernel_init=bert.INIT,
        out_init=bert.INIT,
        compute=config.compute,
    )


def _layer(config: BigBirdPegasusConfig) -> dict[str, Any]:
    """Return the attributes of a layer apart from its attention."""
    return {
        "make_norm": functools.partial(NORM, compute=config.compute),
        "make_feed_forward": bert.feed_forward(
            config.d_ff, config.compute, activation=bigbird.GELU
        ),
        "compute": config.compute,
    }


def _tower(
    config: BigBirdPegasusConfig, make_stack: Callable[..., nn.Module]
) -> Callable[..., nn.Module]:
    """Return a factory of a tower: scaled embeddings plus positions, layers, and a norm.

    The norm is not followed by dropout.
    """
    return functools.partial(
        Tower,
        make_entrance=functools.partial(
            AddPositions,
            make_positions=functools.partial(
                LearnedPositions,
                length=config.positions,
                features=config.d_model,
                embedding_init=bert.INIT,
                compute=config.compute,
            ),
            scale=config.d_model**0.5,
        ),
        make_stack=make_stack,
        make_exit=functools.partial(NORM, compute=config.compute),
        compute=config.compute,
    )


SYSTEM = System(
    name="bigbird_pegasus",
    sizes=SIZES,
    build=build,
    tasks={"": Task(loss=loss, prediction="text")},
    generation={
        "decoder_start_token_id": "start_id",
        "eos_token_id": "end_id",
        "pad_token_id": "padding",
    },
    adapt=functools.partial(adaptation, new=("lm_head/bias",)),
)
