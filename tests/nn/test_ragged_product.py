"""The ragged product on a CPU: values, gradients and FLOPs of `jax.lax.ragged_dot`, in blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.nn.matrix_product import ragged_product
from t5x_like.training import flops

ROWS, INNER, OUTER = 100, 6, 10  # blocks of 12 rows for 4 groups


def operands(dtype=jnp.float32, groups=4):
    rng = np.random.default_rng(0)
    rows, kernels = rng.standard_normal((ROWS, INNER)), rng.standard_normal((groups, INNER, OUTER))
    return jnp.asarray(rows, dtype), jnp.asarray(kernels, dtype)


def value_and_gradients(multiply, rows, kernels, sizes):
    def loss(rows, kernels):
        out = multiply(rows, kernels, jnp.array(sizes))
        return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

    grad = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    (_, out), gradients = jax.jit(grad)(rows, kernels)
    return out, gradients


SIZES = {
    "each": (20, 31, 12, 37),
    "empty": (0, 60, 0, 40),
    "rest": (1, 13, 0, 24),
    "none": (0, 0, 0, 0),
    "one": (0, 0, 100, 0),
}


@pytest.mark.parametrize("sizes", SIZES)
def test_values_and_gradients_are_those_of_ragged_dot(sizes):
    found, expected = (
        value_and_gradients(multiply, *operands(), SIZES[sizes])
        for multiply in (ragged_product, jax.lax.ragged_dot)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), found, expected)


def test_gradients_of_bfloat16_are_summed_in_float32():
    sizes = (ROWS, 0, 0, 0)
    narrow = operands(jnp.bfloat16)
    _, found = value_and_gradients(ragged_product, *narrow, sizes)
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), narrow)
    _, exact = value_and_gradients(ragged_product, *wide, sizes)
    for ours, wanted in zip(found, exact, strict=True):
        assert ours.dtype == jnp.bfloat16
        error = jnp.linalg.norm(ours.astype(jnp.float32) - wanted) / jnp.linalg.norm(wanted)
        assert error < 0.01  # the gradient of the output is rounded to 8 bits, and the result


def test_no_array_has_the_rows_of_all_groups():
    program = jax.jit(ragged_product).lower(*operands(), jnp.zeros(4, int)).as_text()
    assert f"tensor<{ROWS + 12}x{OUTER}xf32>" in program
    assert f"4x{ROWS}x" not in program
    all_groups = jax.jit(jax.lax.ragged_dot).lower(*operands(), jnp.zeros(4, jnp.int32))
    assert f"4x{ROWS}x" in all_groups.as_text()


def test_each_row_counts_the_flops_of_one_matrix():
    sizes = jnp.zeros(4, jnp.int32)
    once = 2 * ROWS * INNER * OUTER
    assert flops.count(ragged_product, *operands(), sizes) == once

    def gradients(rows, kernels):
        return jax.grad(lambda *x: jnp.sum(ragged_product(*x, sizes)), argnums=(0, 1))(
            rows, kernels
        )

    assert flops.count(gradients, *operands()) == 3 * once
