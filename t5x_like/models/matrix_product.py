"""Matrix products with float32 sums, whose gradients are products of the operands' own type."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_FEW = 64  # rows


def product(
    equation: str, left: Float[Array, "..."], right: Float[Array, "..."]
) -> Float[Array, "..."]:
    """`einsum` of two arrays of one type, with float32 sums and a float32 result.

    A float32 result has a float32 gradient. For bfloat16 operands it is rounded to their type
    before it is multiplied, as Micikevicius et al. 2018 (section 3) multiply: otherwise both
    products of the backward pass would have a float32 operand, which accelerators multiply several
    times slower. Sums are float32 there too.

    Args:
        equation: as of `einsum`, without an ellipsis; each index is in two of the three terms.
    """
    if left.dtype == jnp.float32:
        return float32_sums(equation, left, right)
    return _rounding_gradient(equation, jnp.float32, left, right)


def local_product(
    equation: str, left: Float[Array, "..."], right: Float[Array, "..."]
) -> Float[Array, "..."]:
    """`product` where no device has only a part of the sums of the backward pass.

    These products then round their own sums. With a float32 result for 16-bit operands, XLA for
    CPUs without 16-bit products (most AMD processors) ends with "Unsupported element type for
    DotThunk" for some orders of axes, such as "BHTS,BTHK->BHSK".
    """
    if left.dtype == jnp.float32:
        return float32_sums(equation, left, right)
    return _rounding_gradient(equation, left.dtype, left, right)


def float32_sums(equation: str, left: Array, right: Array) -> Array:
    """`einsum` with float32 sums and a float32 result, whose gradient is JAX's."""
    return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)


def product_with_transposed(
    rows: Float[Array, "N n"], transposed: Float[Array, "m n"]
) -> Float[Array, "N m"]:
    """Rows times a kernel that lies transposed: for few rows on a CPU as kernel times rows.

    XLA for CPUs multiplies 2 to 64 rows in 0.4 to 0.9 of the time so, and one row in the same
    (docs/performance.md).
    """
    if len(rows) > _FEW:
        return rows @ transposed.T
    # Without the barrier XLA exchanges the operands again.
    return jax.lax.optimization_barrier(transposed @ rows.T).T


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _rounding_gradient(equation: str, sums: Any, left: Array, right: Array) -> Array:
    """`float32_sums`; the products of its gradient have results of the type `sums`."""
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
