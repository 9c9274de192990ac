"""Products with 8-bit operands: their distance from exact ones, forward and backward."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.nn.matrix_product import select_product

ROWS, INPUTS, OUTPUTS = 6, 40, 9


def made():
    """Rows and columns of other sizes than their neighbours, as activations and weights have."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(ROWS, INPUTS)) * 10.0 ** rng.integers(-3, 3, size=(ROWS, 1))
    kernel = rng.normal(size=(INPUTS, OUTPUTS)) * 10.0 ** rng.integers(-2, 1, size=OUTPUTS)
    gradient = rng.normal(size=(ROWS, OUTPUTS)) * 10.0 ** rng.integers(-8, 0, size=(ROWS, 1))
    return [jnp.asarray(x, jnp.float32) for x in (rows, kernel, gradient)]


def rounding(x, axis, kind):
    """The most that rounding to 8 bits moves each number, with one scale along an axis."""
    x = np.abs(x)
    largest = x.max(axis=axis, keepdims=True)
    if kind == "int8":
        return np.broadcast_to(largest / 127 / 2, x.shape)
    info = jnp.finfo(kind)
    subnormal = largest / float(info.max) * float(info.smallest_subnormal)
    return np.maximum(x * 2.0 ** -(info.nmant + 1), subnormal / 2)


def bound(left, right, kinds):
    """The most that a product of rounded matrices differs from the exact one."""
    if kinds is None:
        off_left, off_right = np.zeros_like(left), np.zeros_like(right)
    else:
        off_left, off_right = rounding(left, 1, kinds[0]), rounding(right, 0, kinds[1])
    left, right = np.abs(left), np.abs(right)
    # Sums and scales are float32: some thousandths of the least error of 8 bits.
    return off_left @ right + left @ off_right + off_left @ off_right + 1e-5 * (left @ right)


E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
KINDS = {  # of the output, the gradient of the rows and that of the kernel
    "int8": (("int8", "int8"), ("int8", "int8"), None),
    "fp8": ((E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)),
}


@functools.cache
def compiled(name):
    """(rows, kernel, gradient) -> the output, the gradient of the rows, that of the kernel."""

    def products(rows, kernel, gradient):
        output, back = jax.vjp(select_product(name), rows, kernel)
        return output, *back(gradient)

    return jax.jit(products)


@pytest.mark.parametrize("name", KINDS)
def test_products_and_gradients_are_exact_but_for_rounding(name):
    found = compiled(name)(*made())
    rows, kernel, gradient = (np.asarray(x, np.float64) for x in made())
    factors = [(rows, kernel), (gradient, kernel.T), (rows.T, gradient)]
    for product, (left, right), kinds in zip(found, factors, KINDS[name], strict=True):
        share = np.abs(product - left @ right) / bound(left, right, kinds)
        assert np.max(share) <= 1.0
        if kinds:  # The bound is not far from the truth.
            assert np.max(share) > 0.05


@pytest.mark.parametrize("name", KINDS)
def test_a_row_does_not_depend_on_other_rows(name):
    rows, kernel, gradient = made()
    output, by_rows, _ = compiled(name)(rows, kernel, gradient)
    others = compiled(name)(rows.at[1:].mul(-7.0), kernel, gradient.at[1:].mul(100.0))
    np.testing.assert_array_equal(output[0], others[0][0])
    np.testing.assert_array_equal(by_rows[0], others[1][0])
    assert not np.allclose(output[1:], others[0][1:])


@pytest.mark.parametrize("name", KINDS)
def test_zeros_stay_zeros_and_what_is_not_finite_shows(name):
    rows, kernel, gradient = made()
    rows = rows.at[0].set(0.0).at[1, 3].set(jnp.nan).at[2, 4].set(jnp.inf)
    output, by_rows, by_kernel = compiled(name)(rows, kernel, gradient)
    np.testing.assert_array_equal(output[0], np.zeros(OUTPUTS))
    assert not np.isfinite(output[1:3]).any()
    assert np.isfinite(output[3:]).all()
    assert np.isfinite(by_rows).all()
    assert not np.isfinite(by_kernel[3:5]).any()
    _, by_rows, by_kernel = compiled(name)(made()[0], kernel, gradient.at[4, 0].set(jnp.nan))
    assert np.isfinite(by_rows).all(axis=1).tolist() == [row != 4 for row in range(ROWS)]
    assert not np.isfinite(by_kernel[:, 0]).any()
    assert np.isfinite(by_kernel[:, 1:]).all()


@pytest.mark.parametrize("name", KINDS)
def test_results_have_the_types_of_the_operands(name):
    given = [x.astype(jnp.bfloat16) for x in made()]
    assert [x.dtype for x in jax.eval_shape(compiled(name), *given)] == [jnp.bfloat16] * 3
