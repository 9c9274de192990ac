"""Attention: the equation, grouped heads, masks and the choice of a core."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

from t5x_like import partitioning
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.cores import dense_core
from t5x_like.nn.attention.kernels import by_device_core, cudnn_core, select_core
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import AttentionMask

BATCH, TARGETS, SOURCES, HEADS, WIDTH = 2, 3, 5, 4, 6


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def test_dense_core_is_equation_1_of_vaswani():
    query = draw(BATCH, TARGETS, HEADS, WIDTH)
    keys_values = KeyValues(
        key=draw(BATCH, HEADS, SOURCES, WIDTH, seed=1),
        value=draw(BATCH, HEADS, SOURCES, WIDTH, seed=2),
    )
    bias = draw(1, HEADS, TARGETS, SOURCES, seed=3)
    out = dense_core(query, keys_values, bias=bias, mask=AttentionMask(), scale=0.5)
    for b in range(BATCH):
        for h in range(HEADS):
            scores = 0.5 * query[b, :, h] @ keys_values.key[b, h].T + bias[0, h]
            weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
            # Float32 sums of 5 terms of order 1.
            np.testing.assert_allclose(out[b, :, h], weights @ keys_values.value[b, h], atol=1e-5)


def test_grouped_heads_are_heads_with_repeated_keys():
    query = draw(BATCH, TARGETS, HEADS, WIDTH)
    grouped = KeyValues(draw(BATCH, 2, SOURCES, WIDTH, seed=1), draw(BATCH, 2, SOURCES, WIDTH))
    repeated = jax.tree.map(lambda x: jnp.repeat(x, HEADS // 2, axis=1), grouped)
    one = dense_core(query, grouped, bias=None, mask=AttentionMask(), scale=1.0)
    other = dense_core(query, repeated, bias=None, mask=AttentionMask(), scale=1.0)
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_query_that_sees_nothing_is_finite_and_so_is_its_gradient():
    mask = AttentionMask(query_segments=jnp.array([[1, 0, 2]]), key_segments=jnp.array([[1, 1, 0]]))

    def total(query):
        keys_values = KeyValues(draw(1, HEADS, 3, WIDTH), draw(1, HEADS, 3, WIDTH))
        return dense_core(query, keys_values, bias=None, mask=mask, scale=1.0).sum()

    value, gradient = jax.value_and_grad(total)(draw(1, 3, HEADS, WIDTH))
    assert jnp.isfinite(value)
    assert jnp.isfinite(gradient).all()


def test_masks_allow_the_pairs_they_should():
    segments = jnp.array([[1, 1, 2, 0]])
    full = AttentionMask(query_segments=segments, key_segments=segments)
    np.testing.assert_array_equal(
        full.dense(queries=4, keys=4)[0, 0],
        [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]],
    )
    prefix = AttentionMask(prefix=jnp.array([[True, True, False]]), visibility="prefix")
    np.testing.assert_array_equal(
        prefix.dense(queries=3, keys=3)[0, 0], [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    )
    step = AttentionMask(offset=2, visibility="causal")
    np.testing.assert_array_equal(step.dense(queries=1, keys=4)[0, 0], [[1, 1, 1, 0]])
    assert AttentionMask().dense(queries=3, keys=3) is None


def test_dropout_drops_about_its_rate_and_keeps_the_mean():
    query, keys = jnp.zeros((1, 1, 1, 2)), jnp.zeros((1, 1, 4000, 2))
    out = _attend_with_dropout(query, keys, jnp.ones((1, 1, 4000, 2)))
    # The mean of 4,000 draws that are 0 or 4/3: a standard deviation of 0.0091, times four.
    np.testing.assert_allclose(out, 1.0, atol=0.037)
    assert not np.allclose(out, 1.0, atol=1e-6)


def _attend_with_dropout(query, key, value):
    return dense_core(
        query,
        KeyValues(key, value),
        bias=None,
        mask=AttentionMask(),
        scale=1.0,
        dropout=0.25,
        dropout_rng=jax.random.key(0),
    )


def test_the_gradient_with_dropout_is_that_of_autodiff():
    def equation(query, key, value):
        scores = jnp.einsum("bthk,bhsk->bhts", query, key)
        keep = jax.random.bernoulli(jax.random.key(0), 0.75, scores.shape)
        weights = jax.nn.softmax(scores) * keep / 0.75
        return jnp.einsum("bhts,bhsk->bthk", weights, value)

    inputs = (
        draw(BATCH, TARGETS, HEADS, WIDTH),
        *(draw(BATCH, HEADS, SOURCES, WIDTH, seed=seed) for seed in (1, 2)),
    )
    out, pull = jax.vjp(_attend_with_dropout, *inputs)
    expected, pull_equation = jax.vjp(equation, *inputs)
    # Float32 sums of up to 6 terms of order 1.
    np.testing.assert_allclose(out, expected, atol=1e-5)
    gradient = draw(BATCH, TARGETS, HEADS, WIDTH, seed=3)
    for one, other in zip(pull(gradient), pull_equation(gradient), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_the_backward_pass_keeps_three_bytes_a_score_in_bfloat16():
    query = draw(BATCH, TARGETS, HEADS, WIDTH).astype(jnp.bfloat16)
    key_or_value = draw(BATCH, HEADS, SOURCES, WIDTH, seed=2).astype(jnp.bfloat16)
    _, pull = jax.vjp(_attend_with_dropout, query, key_or_value, key_or_value)
    scores = BATCH * HEADS * TARGETS * SOURCES
    kept = [x for x in jax.tree.leaves(pull) if x.size == scores]
    assert sorted(str(x.dtype) for x in kept) == ["bfloat16", "bool"]


def test_cores_by_name():
    assert select_core("dense") is dense_core
    assert select_core("auto") is by_device_core
    with pytest.raises(ValueError, match="Did you mean 'dense'"):
        select_core("dens")
    with pytest.raises(ValueError, match="bfloat16"):
        cudnn_core(
            draw(1, 2, 1, 4),
            KeyValues(draw(1, 1, 2, 4), draw(1, 1, 2, 4)),
            bias=None,
            mask=AttentionMask(),
            scale=1.0,
        )


def test_heads_must_be_a_multiple_of_their_groups():
    with pytest.raises(ValueError, match=r"heads=4 .* kv_heads=3"):
        Attention(heads=4, kv_heads=3, width=2).init(
            jax.random.key(0), draw(1, 2, 8), method=Attention.keys_values
        )


def test_positions_are_applied_to_heads_that_are_sharded():
    def position(x, _):
        return checkpoint_name(x, "positioned")

    layer = Attention(heads=4, width=8, position=position)
    x = jnp.ones((8, 6, 16))
    mask = AttentionMask()

    def attend(params, x):
        return layer.apply(params, x, method=run, mask=mask)

    def run(layer, x, mask):
        return layer(x, layer.keys_values(x), mask=mask)

    params = nn.unbox(layer.init(jax.random.key(0), x, method=run, mask=mask))
    mesh = partitioning.make_mesh({"data": 2, "model": 4})
    with partitioning.layout(mesh):
        lines = jax.make_jaxpr(attend)(params, x).eqns
    made_by = {out: line for line in lines for out in line.outvars}
    inputs = [
        made_by[line.invars[0]]
        for line in lines
        if line.primitive.name == "name" and line.params["name"] == "positioned"
    ]
    assert [line.primitive.name for line in inputs] == ["sharding_constraint"] * 2
    for line in inputs:
        assert line.params["sharding"].spec[2] == "model"
