"""Blockwise attention: the values, gradients, dropout and FLOPs of dense attention."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import partitioning
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.cores import blockwise_core, dense_core
from t5x_like.nn.attention.kernels import by_device_core
from t5x_like.nn.attention.positions import AttentionMask
from t5x_like.training import flops

BATCH, LENGTH, HEADS, WIDTH = 2, 300, 4, 8  # two blocks of 128 queries and one of 44
REAL = 280  # of packed rows; the rest is padding, whose outputs nothing reads
# Float32 sums of 300 terms of order 1, in another order.
CLOSE = {"rtol": 1e-4, "atol": 2e-5}


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def terms(*, groups=HEADS, keys=LENGTH):
    """A query [B,T,H,K], keys and values [B,G,S,K] and a bias [1,H,T,S]."""
    key, value = (draw(BATCH, groups, keys, WIDTH, seed=seed) for seed in (1, 2))
    return draw(BATCH, LENGTH, HEADS, WIDTH), KeyValues(key, value), draw(1, HEADS, LENGTH, keys)


def packed():
    """A mask of rows with two texts and padding."""
    segments = jnp.where(jnp.arange(LENGTH) < 170, 1, 2) * (jnp.arange(LENGTH) < REAL)
    segments = jnp.broadcast_to(segments, (BATCH, LENGTH))
    return AttentionMask(visibility="causal", query_segments=segments, key_segments=segments)


def value_and_gradients(core, query, keys_values, bias, *, real=REAL, **settings):
    def weighted(query, keys_values, bias):
        out = core(query, keys_values, bias=bias, scale=0.3, **settings)
        out = out[:, :real]
        return jnp.sum(out * draw(*out.shape, seed=4)), out

    arguments = (0, 1) if bias is None else (0, 1, 2)
    (_, out), gradients = jax.value_and_grad(weighted, argnums=arguments, has_aux=True)(
        query, keys_values, bias
    )
    return out, gradients


def assert_as_dense(*arguments, **settings):
    ours, dense = (
        value_and_gradients(core, *arguments, **settings) for core in (blockwise_core, dense_core)
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, **CLOSE), ours, dense)


MASKS = {
    "all": AttentionMask(),
    "causal": AttentionMask(visibility="causal"),
    "window": AttentionMask(visibility="causal", window=40),
    "packed": packed(),
}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_values_and_gradients_are_those_of_dense_attention(mask, biased):
    query, keys_values, bias = terms()
    assert_as_dense(query, keys_values, bias if biased else None, mask=MASKS[mask])


def test_prefixes_are_seen_from_all_of_their_queries():
    query, keys_values, _ = terms()
    prefix = jnp.arange(LENGTH)[None] < jnp.array([[150], [7]])
    mask = AttentionMask(visibility="prefix", prefix=prefix)
    assert_as_dense(query, keys_values, None, mask=mask)


def test_heads_may_share_keys():
    query, keys_values, bias = terms(groups=2)
    assert_as_dense(query, keys_values, bias, mask=MASKS["causal"])


def test_one_bias_for_all_heads():
    query, keys_values, bias = terms()
    assert_as_dense(query, keys_values, bias[:, :1], mask=MASKS["packed"])


def test_other_keys_than_queries():
    query, keys_values, _ = terms(keys=90)
    real = jnp.arange(90)[None] < jnp.array([[90], [31]])
    mask = AttentionMask(query_segments=jnp.ones((BATCH, LENGTH), int), key_segments=real * 1)
    assert_as_dense(query, keys_values, None, mask=mask)


def test_a_query_without_keys_is_the_mean_of_the_values_as_in_dense_attention():
    query, keys_values, bias = terms()
    segments = jnp.broadcast_to(jnp.arange(LENGTH) < REAL, (BATCH, LENGTH)) * 1
    mask = AttentionMask(query_segments=segments, key_segments=segments)
    assert_as_dense(query, keys_values, bias, mask=mask, real=LENGTH)


@pytest.mark.parametrize("queries", [1, LENGTH])
def test_a_bias_may_be_one_for_all_queries_or_one_for_each_row(queries):
    query, keys_values, _ = terms()
    bias = draw(BATCH, HEADS, queries, LENGTH, seed=5)
    for mask in ("all", "causal"):
        assert_as_dense(query, keys_values, bias, mask=MASKS[mask])


def test_bfloat16_is_as_near_to_float32_as_dense_attention():
    query, keys_values, bias = terms()
    exact = value_and_gradients(dense_core, query, keys_values, bias, mask=MASKS["causal"])
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (query, keys_values, bias))
    found = value_and_gradients(blockwise_core, *narrow, mask=MASKS["causal"])
    for ours, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        assert ours.dtype == jnp.bfloat16
        # Operands, weights and outputs are rounded to 8 bits.
        error = jnp.linalg.norm(ours.astype(jnp.float32) - wanted) / jnp.linalg.norm(wanted)
        assert error < 0.01


@pytest.mark.parametrize(("broadcast", "groups"), [(True, HEADS), (False, HEADS), (True, 2)])
def test_dropout_is_that_of_dense_attention(broadcast, groups):
    query, keys_values, _ = terms(groups=groups)
    drops = {"dropout": 0.4, "dropout_rng": jax.random.key(3), "dropout_broadcast": broadcast}
    assert_as_dense(query, keys_values, None, mask=MASKS["causal"], **drops)


def test_flops_are_those_of_all_pairs():
    query, keys_values, bias = terms()

    def counted(core):
        return flops.count(
            lambda *terms: core(*terms, bias=bias, mask=MASKS["causal"], scale=1.0),
            query,
            keys_values,
        )

    assert counted(blockwise_core) == counted(dense_core) == 4 * BATCH * HEADS * LENGTH**2 * WIDTH


def pairs_at_once(core, query):
    """The most scores that the program of a core holds."""
    _, keys_values, _ = terms()
    mask = MASKS["causal"]
    run = jax.jit(lambda *terms: core(*terms, bias=None, mask=mask, scale=1.0))
    return "x".join(map(str, (BATCH, HEADS, LENGTH, LENGTH))) in (
        run.lower(query, keys_values).as_text()
    )


def test_the_default_is_blockwise_for_float32_on_a_cpu():
    query, _, _ = terms()
    assert pairs_at_once(dense_core, query)
    assert not pairs_at_once(by_device_core, query)
    assert pairs_at_once(by_device_core, query.astype(jnp.bfloat16))


def test_heads_of_two_devices_are_computed_by_two_devices():
    query, keys_values, bias = terms()
    mask = MASKS["packed"]
    alone = blockwise_core(query, keys_values, bias=bias, mask=mask, scale=0.3)
    mesh = partitioning.make_mesh({"model": 2, "data": 2}, devices=jax.devices()[:4])
    with partitioning.layout(mesh):
        together = jax.jit(lambda *terms: blockwise_core(*terms, bias=bias, mask=mask, scale=0.3))(
            query, keys_values
        )
    np.testing.assert_allclose(together[:, :REAL], alone[:, :REAL], **CLOSE)
