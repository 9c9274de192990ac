"""Matrix products with float32 sums, whose gradients are products in the operands' dtype."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_FEW = 64  # rows


def product(
    equation: str, left: Float[Array, "..."], right: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Compute the `einsum` of two arrays of one dtype, with float32 sums and a float32 result.

    A float32 result has a float32 gradient. For bfloat16 operands it is rounded to bfloat16 before
    it is multiplied (Micikevicius et al. 2018, section 3): otherwise both products of the backward
    pass would have a float32 operand, which accelerators multiply several times slower. The sums
    of the backward pass are float32 too.

    Args:
        equation: an `einsum` equation without an ellipsis; each index is in two of the three terms.
    """
    if left.dtype == jnp.float32:
        return float32_sums(equation, left, right)
    return _rounding_gradient(equation, jnp.float32, left, right)


def local_product(
    equation: str, left: Float[Array, "..."], right: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Compute `product` if the sums of the backward pass are not split over devices.

    The products of the backward pass then round their results to the operands' dtype. With a
    float32 result for 16-bit operands, XLA for CPUs without 16-bit products (most AMD processors)
    fails with "Unsupported element type for DotThunk" for some orders of axes, such as
    "BHTS,BTHK->BHSK".
    """
    if left.dtype == jnp.float32:
        return float32_sums(equation, left, right)
    return _rounding_gradient(equation, left.dtype, left, right)


def float32_sums(equation: str, left: Array, right: Array) -> Array:
    """Compute `einsum` with float32 sums and a float32 result, with JAX's automatic gradient."""
    return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)


def product_with_transposed(
    rows: Float[Array, "N n"], transposed: Float[Array, "m n"]
) -> Float[Array, "N m"]:
    """Multiply rows by a kernel that is stored transposed; up to 64 rows as kernel times rows.

    XLA for CPUs thus needs 0.4 to 0.9 of the time for 2 to 64 rows, and the same time for one row
    (docs/performance.md).
    """
    if len(rows) > _FEW:
        return rows @ transposed.T
    # Without the barrier XLA would swap the operands back.
    return jax.lax.optimization_barrier(transposed @ rows.T).T


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _rounding_gradient(equation: str, sums: Any, left: Array, right: Array) -> Array:
    """Compute `float32_sums`; the products of its gradient have results of the dtype `sums`."""
    del sums
    return float32_sums(equation, left, right)


def _forward(equation, sums, left, right):
    del sums
    return float32_sums(equation, left, right), (left, right)


def _backward(equation, sums, operands, gradient):
    left, right = operands
    terms, out = equation.split("->")
    of_left, of_right = terms.split(",")
    gradient = gradient.astype(left.dtype)
    multiply = functools.partial(jnp.einsum, preferred_element_type=sums)
    by_left = multiply(f"{out},{of_right}->{of_left}", gradient, right)
    by_right = multiply(f"{of_left},{out}->{of_right}", left, gradient)
    return by_left.astype(left.dtype), by_right.astype(right.dtype)


_rounding_gradient.defvjp(_forward, _backward)
