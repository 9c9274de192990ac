"""Layer norms against flax's: values, gradients, types, and vectors far from zero."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.nn.compute import Compute
from t5x_like.nn.linear import LayerNorm, RMSNorm

PAIRS = {
    "rms": (RMSNorm(epsilon=1e-5), nn.RMSNorm(epsilon=1e-5)),
    "layer": (LayerNorm(epsilon=1e-5), nn.LayerNorm(epsilon=1e-5, use_fast_variance=False)),
    "no_bias": (
        LayerNorm(epsilon=1e-5, use_bias=False),
        nn.LayerNorm(epsilon=1e-5, use_bias=False, use_fast_variance=False),
    ),
}


def _params(norm):
    shapes = nn.unbox(norm.init(jax.random.key(0), jnp.zeros((1, 24))))
    return jax.tree.map(lambda x: x + jax.random.normal(jax.random.key(1), x.shape), shapes)


def _inputs(dtype, *, mean):
    x, seen = jax.random.normal(jax.random.key(2), (2, 3, 5, 24))
    return (mean + x).astype(dtype), seen.astype(dtype)


@pytest.mark.parametrize(("own", "theirs"), PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_values_and_gradients_are_those_of_flax(own, theirs, dtype):
    params, (x, seen) = _params(own), _inputs(dtype, mean=3.0)

    def loss(norm):
        def of(params, x):
            y = norm.apply(params, x)
            return jnp.sum(y.astype(jnp.float32) * seen), y

        return jax.grad(of, argnums=(0, 1), has_aux=True)(params, x)

    found, y = loss(own.clone(compute=Compute(dtype=dtype)))
    wanted, z = loss(theirs.clone(dtype=dtype))
    close = {jnp.float32: 1e-5, jnp.bfloat16: 2e-2}[dtype]
    np.testing.assert_allclose(*(np.float32(a) for a in (y, z)), rtol=close, atol=close)
    for a, b in zip(*(jax.tree.leaves(tree) for tree in (found, wanted)), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.float32(a), np.float32(b), rtol=close, atol=close)


def test_a_mean_far_above_the_deviation_costs_no_digits():
    x, _ = _inputs(jnp.float32, mean=1000.0)
    exact = np.asarray(x, np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / exact.std(-1, keepdims=True)
    norm = LayerNorm(epsilon=0.0)
    y = norm.apply(nn.unbox(norm.init(jax.random.key(0), x)), x)
    np.testing.assert_allclose(y, exact, atol=1e-3)  # E[x^2] - E[x]^2 is 2 off
