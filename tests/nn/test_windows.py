"""Windows: blocks = the dense band, and a ring of W slots is all that a cache keeps."""

import functools

import flax.linen as nn
import jax
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.cores import banded, dense_core
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import AttentionMask
from t5x_like.nn.blocks import PreNormBlock
from t5x_like.nn.compute import Compute
from t5x_like.nn.embeddings import TiedHead, TokenEmbed
from t5x_like.nn.linear import MLP, RMSNorm
from t5x_like.nn.networks import Decoder, Tower
from t5x_like.nn.stack import LayerGroup, Stack

WINDOW = 3
# Float32 sums of some tens of terms of order 1, in another order.
ROUNDING = 2e-5


def draw(*shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def packed(length):
    """Two documents and padding in the first row, one document in the second."""
    first = np.where(np.arange(length) < length // 2, 1, 2)
    first[-2:] = 0
    return np.stack([first, np.ones(length, int)]).astype(np.int32)


def qkv(length):
    key, value = draw(2, 2, length, 2, 5, seed=1)
    return draw(2, length, 4, 5, seed=0), KeyValues.from_positions(key, value)


@pytest.mark.parametrize("length", [7, 9, 10, 17])
@pytest.mark.parametrize("segments", [None, packed])
def test_the_band_in_blocks_is_the_dense_one(length, segments):
    ids = None if segments is None else segments(length)
    mask = AttentionMask(query_segments=ids, key_segments=ids, visibility="causal", window=WINDOW)
    found, expected = (
        jax.jit(functools.partial(core, bias=None, mask=mask, scale=0.4))(*qkv(length))
        for core in (banded(dense_core, window=WINDOW), dense_core)
    )
    real = np.ones((2, length), bool) if ids is None else np.asarray(ids) > 0
    np.testing.assert_allclose(np.asarray(found)[real], np.asarray(expected)[real], atol=ROUNDING)


def shapes_within(jaxpr):
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            yield from shapes_within(inner)


@pytest.mark.parametrize(("core", "squares"), [(banded(dense_core, window=4), 0), (dense_core, 1)])
def test_the_band_needs_no_square_of_scores(core, squares):
    length = 64
    mask = AttentionMask(visibility="causal", window=4)

    def squared(query, keys_values):
        return (core(query, keys_values, bias=None, mask=mask, scale=1.0) ** 2).sum()

    jaxpr = jax.make_jaxpr(jax.grad(squared))(*qkv(length)).jaxpr
    square = [shape for shape in shapes_within(jaxpr) if shape.count(length) > 1]
    assert bool(square) == bool(squares)


@functools.cache
def make(loop):
    def block(window):
        return functools.partial(
            PreNormBlock,
            make_norm=RMSNorm,
            make_self_attention=functools.partial(Attention, heads=4, width=4, window=window),
            make_feed_forward=functools.partial(MLP, hidden=20),
        )

    group = functools.partial(LayerGroup, make_blocks=(block(None), block(WINDOW)))
    stack = functools.partial(Stack, make_block=group, layers=2, compute=Compute(loop=loop))
    module = Decoder(
        make_embedding=functools.partial(TokenEmbed, vocab_size=50, features=16),
        make_decoder=functools.partial(Tower, make_stack=stack, make_norm=RMSNorm),
        make_head=TiedHead,
    )
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    return module, init(jax.random.key(0))


@functools.cache
def jitted(loop, method):
    module, _ = make(loop)

    def apply(params, *args, **settings):
        return module.apply({"params": params}, *args, method=method, **settings)

    return jax.jit(apply, static_argnames="cache_length")


def tokens(length):
    rows = np.random.default_rng(0).integers(0, 50, (2, length))
    return rows.astype(np.int32)


@pytest.mark.parametrize("loop", ["scan", pytest.param("unroll", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("prompt", "at_once"), [(1, 1), (5, 1), (5, 2), (9, 4)])
def test_a_ring_of_keys_is_as_good_as_all(loop, prompt, at_once):
    _, params = make(loop)
    text, padding = tokens(13), 2
    full = np.asarray(jitted(loop, "__call__")(params, {"decoder_input_tokens": text}))
    real = np.pad(np.ones((2, prompt), bool), ((0, 0), (padding, 0)))
    logits, cache = jitted(loop, "prefill")(
        params,
        np.pad(text[:, :prompt], ((0, 0), (padding, 0))),
        decoder_mask=real,
        cache_length=13 + padding,
    )
    sizes = {x.shape[-2] for x in jax.tree.leaves(cache.layers)}
    assert sizes == {13 + padding, WINDOW}
    np.testing.assert_allclose(logits, full[:, prompt - 1], atol=ROUNDING)
    extend = jitted(loop, "extend")
    for place in range(prompt, 13, at_once):
        logits, cache = extend(params, text[:, place : place + at_once], cache)
        np.testing.assert_allclose(logits, full[:, place : place + at_once], atol=ROUNDING)


def test_a_reordered_ring_goes_on_as_the_rows_it_came_from():
    _, params = make("unroll")
    text = tokens(6)
    _, cache = jitted("unroll", "prefill")(params, text, cache_length=9)
    extend = functools.partial(jitted("unroll", "extend"), params)
    rows, token = np.array([1, 1]), np.array([[5], [6]], np.int32)
    logits, _ = extend(token, cache)
    gathered, _ = extend(token[rows], cache.reorder(rows))
    np.testing.assert_allclose(gathered, logits[rows], atol=ROUNDING)
