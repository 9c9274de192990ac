"""No part accepts a factory that it does not use."""

import functools

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import AttentionMask
from t5x_like.nn.blocks import ParallelBlock, PreNormBlock, Shared, TwoNormParallelBlock
from t5x_like.nn.compute import Compute
from t5x_like.nn.linear import MLP
from t5x_like.systems.bigbird_etc import GlobalLocalAttention
from t5x_like.systems.deberta import MaskDecoderBlock
from t5x_like.systems.deberta_v2 import GradientDisentangledPair
from t5x_like.systems.t5 import TokenEncoder
from t5x_like.systems.xlnet import TwoStreamBlock

ATTENTION = functools.partial(Attention, heads=2, width=4)


@pytest.mark.parametrize("kind", [TwoNormParallelBlock, TwoStreamBlock, MaskDecoderBlock])
def test_blocks_without_cross_attention_refuse_its_factory(kind):
    block = kind(
        make_norm=nn.LayerNorm,
        make_self_attention=ATTENTION,
        make_feed_forward=functools.partial(MLP, hidden=8),
        make_cross_attention=ATTENTION,
    )
    with pytest.raises(ValueError, match=f"a {kind.__name__} has no cross-attention: leave"):
        jax.eval_shape(block.init, jax.random.key(0), np.ones((1, 3, 8)), Shared(mask=None), None)


@pytest.mark.parametrize("kind", [PreNormBlock, ParallelBlock, TwoNormParallelBlock])
def test_blocks_without_cross_attention_refuse_the_output_of_an_encoder(kind):
    block = kind(
        make_norm=nn.LayerNorm,
        make_self_attention=ATTENTION,
        make_feed_forward=functools.partial(MLP, hidden=8),
    )
    shared = Shared(mask=AttentionMask(), memory=np.ones((1, 5, 8)))
    with pytest.raises(ValueError, match=f"a {kind.__name__} without cross-attention would ignore"):
        jax.eval_shape(block.init, jax.random.key(0), np.ones((1, 3, 8)), shared, None)


@pytest.mark.parametrize("kind", [TokenEncoder, GradientDisentangledPair])
def test_encoders_without_a_projection_refuse_its_factory(kind):
    more = {} if kind is TokenEncoder else {"make_generator": None, "tied": (), "objective": ""}
    network = kind(
        make_embeddings=None, make_encoder=None, make_head=None, make_projection=nn.Dense, **more
    )
    batch = {"encoder_input_tokens": np.ones((1, 3), np.int32)}
    with pytest.raises(ValueError, match="leave make_projection out"):
        jax.eval_shape(network.init, jax.random.key(0), batch)


def test_attention_with_a_core_of_its_own_refuses_another():
    compute = Compute(core=print)
    attention = GlobalLocalAttention(heads=2, width=4, block=2, distance=3, compute=compute)
    with pytest.raises(ValueError, match="leave core, position and window out"):
        jax.eval_shape(
            functools.partial(attention.init, method="keys_values"),
            jax.random.key(0),
            np.ones((1, 4, 8)),
        )
