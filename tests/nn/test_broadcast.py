"""The gradient of a broadcast is the sum over its axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.nn.attention.cores import broadcast_to

SHAPE = (3, 4, 5, 6)


@pytest.mark.parametrize("shape", [(1, 4, 5, 6), (1, 1, 5, 6), (3, 1, 1, 6), (1, 1, 1, 1), SHAPE])
def test_its_gradient_is_that_of_jax(shape):
    rng = np.random.default_rng(0)
    x, factors = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in (shape, SHAPE))

    def gradient(broadcast):
        return jax.grad(lambda x: jnp.sum(factors * broadcast(x, SHAPE)))(x)

    np.testing.assert_array_equal(broadcast_to(x, SHAPE), jnp.broadcast_to(x, SHAPE))
    np.testing.assert_allclose(gradient(broadcast_to), gradient(jnp.broadcast_to), rtol=1e-5)
