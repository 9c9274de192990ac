"""Ragged products, of sorted rows with the matrix of their group, that are also fast on CPUs."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like import partitioning
from t5x_like.nn.matrix_product import float32_sums

# The bounds of the block size, which is half of the average number of rows in a group.
_LEAST, _MOST = 8, 128


def ragged_product(
    rows: Float[Array, "N n"], kernels: Float[Array, "E n m"], sizes: Int[Array, " E"]
) -> Float[Array, "N m"]:
    """Multiply each row by the matrix of its group; return 0 for rows after the last group.

    The first `sizes[0]` rows belong to the first group, and so on. On a CPU, where XLA's
    `ragged_dot` multiplies every row by all E matrices, the rows of a group are multiplied in
    blocks; the last block may not be full.
    """
    if partitioning.platform() != "cpu":
        return jax.lax.ragged_dot(rows, kernels, sizes)
    return _by_blocks(rows, kernels, sizes)


@jax.custom_vjp
def _by_blocks(rows: Array, kernels: Array, sizes: Array) -> Array:
    return _forward(rows, kernels, sizes)[0]


def _forward(rows, kernels, sizes):
    out = ragged_product_of_rows(rows, kernels, sizes, equation="bn,nm->bm")
    return out, (rows, kernels, sizes)


def _backward(kept, gradient):
    rows, kernels, sizes = kept
    gradient = gradient.astype(rows.dtype)
    by_rows = ragged_product_of_rows(gradient, kernels, sizes, equation="bm,nm->bn")
    by_kernels = ragged_product_of_groups(rows, gradient, sizes)
    return by_rows, by_kernels.astype(kernels.dtype), None


_by_blocks.defvjp(_forward, _backward)


# `training.flops` finds these two jitted functions by name.
@functools.partial(jax.jit, static_argnames="equation")
def ragged_product_of_rows(
    rows: Float[Array, "N b"],
    kernels: Float[Array, "E n m"],
    sizes: Int[Array, " E"],
    *,
    equation: str,
) -> Float[Array, "N c"]:
    """Multiply rows by the matrix of their group or, depending on `equation`, its transpose."""
    block, ends = _block(rows, sizes), jnp.cumsum(sizes)
    width = kernels.shape[2 if equation.endswith("m") else 1]
    padded = _padded(rows, block)

    def multiply_group(out: Array, group: tuple[Array, Array, Array]) -> tuple[Array, None]:
        kernel, begin, end = group

        def multiply(number: Array, out: Array) -> Array:
            # The last block may contain rows of later groups, which overwrite them afterwards.
            place = begin + number * block
            part = jax.lax.dynamic_slice_in_dim(padded, place, block)
            part = float32_sums(equation, part, kernel).astype(out.dtype)
            return jax.lax.dynamic_update_slice_in_dim(out, part, place, 0)

        return jax.lax.fori_loop(0, _blocks(begin, end, block), multiply, out), None

    out = jnp.zeros((len(padded), width), rows.dtype)
    out, _ = jax.lax.scan(multiply_group, out, (kernels, ends - sizes, ends))
    return jnp.where(jnp.arange(len(rows))[:, None] < ends[-1], out[: len(rows)], 0)


@jax.jit
def ragged_product_of_groups(
    rows: Float[Array, "N n"], gradient: Float[Array, "N m"], sizes: Int[Array, " E"]
) -> Float[Array, "E n m"]:
    """Return the float32 product of each group's transposed `rows` with its rows of `gradient`."""
    block, ends = _block(rows, sizes), jnp.cumsum(sizes)
    rows, gradient = _padded(rows, block), _padded(gradient, block)

    def add_group(_: None, group: tuple[Array, Array]) -> tuple[None, Array]:
        begin, end = group

        def add(number: Array, total: Array) -> Array:
            place = begin + number * block
            own = place + jnp.arange(block) < end
            part = jax.lax.dynamic_slice_in_dim(rows, place, block)
            part = jnp.where(own[:, None], part, 0)
            by_part = jax.lax.dynamic_slice_in_dim(gradient, place, block)
            return total + float32_sums("bn,bm->nm", part, by_part)

        total = jnp.zeros((rows.shape[1], gradient.shape[1]), jnp.float32)
        return None, jax.lax.fori_loop(0, _blocks(begin, end, block), add, total)

    return jax.lax.scan(add_group, None, (ends - sizes, ends))[1]


def _block(rows: Array, sizes: Array) -> int:
    """Return the number of rows of a block."""
    half = len(rows) // (2 * len(sizes))
    return min(max(half, _LEAST), _MOST)


def _blocks(begin: Array, end: Array, block: int) -> Array:
    """Return the number of blocks of a group."""
    return (end - begin + block - 1) // block


def _padded(rows: Float[Array, "N n"], block: int) -> Float[Array, "M n"]:
    """Append a block of zeros to the rows, so that no block reaches beyond the end."""
    return jnp.pad(rows, ((0, block), (0, 0)))
