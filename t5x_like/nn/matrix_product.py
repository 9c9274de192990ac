"""Matrix products with float32 sums, whose gradients are products in the operands' dtype.

The products of linear layers can have 8-bit operands, forward and backward, for training. Ragged
products, of sorted rows with the matrix of their group, are also fast on CPUs.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like import partitioning
from t5x_like.names import choose

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


Product = Callable[[Float[Array, "N n"], Float[Array, "n m"]], Float[Array, "N m"]]
TypePair = tuple[Any, Any]


@dataclasses.dataclass(frozen=True)
class Types:
    """The dtypes of the left and right operands of a layer's three products.

    Attributes:
        output: rows times kernel.
        of_rows: the output's gradient times the kernel: the gradient of the rows.
        of_kernel: rows times the output's gradient: the gradient of the kernel; None: the operands
            are not quantized.
    """

    output: TypePair
    of_rows: TypePair
    of_kernel: TypePair | None


# SwitchBack: Wortsman et al. 2023 (arXiv:2304.13013), section 2.2. The gradient of the kernel is a
# sum over all tokens of the batch, for which int8 would be too coarse.
_INT8 = Types(output=(jnp.int8, jnp.int8), of_rows=(jnp.int8, jnp.int8), of_kernel=None)

# Micikevicius et al. 2022 (arXiv:2209.05433), section 3: four bits of exponent for weights and
# activations, five for gradients, whose range is larger.
_VALUE, _GRADIENT = jnp.float8_e4m3fn, jnp.float8_e5m2
_FP8 = Types(output=(_VALUE, _VALUE), of_rows=(_GRADIENT, _VALUE), of_kernel=(_VALUE, _GRADIENT))


def select_product(name: str) -> Product:
    """Return the product of linear layers for `model.quantization`.

    `int8` and `fp8` scale the operands of each product by the largest absolute value along the
    summed axis (one scale for each row of the left and each column of the right operand) and round
    them to 8 bits; the sums are int32 or float32. Scales are computed at every product, so there is
    no state. The backward pass ignores the rounding (the straight-through estimator, Bengio et al.
    2013), but its products are quantized too, see `Types`. The result has the dtype of the rows. If
    an operand has a NaN or an infinity, its row or column of the result is not finite.

    Raises:
        ValueError: the quantization is unknown.
    """
    table: dict[str, Product] = {
        "none": jnp.matmul,
        "int8": functools.partial(_quantized_product, _INT8),
        "fp8": functools.partial(_quantized_product, _FP8),
    }
    return choose("model.quantization", name, table)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _quantized_product(types: Types, rows: Array, kernel: Array) -> Array:
    return _multiply(rows, kernel, over=(1, 0), types=types.output).astype(rows.dtype)


def _quantized_forward(
    types: Types, rows: Array, kernel: Array
) -> tuple[Array, tuple[Array, Array]]:
    return _quantized_product(types, rows, kernel), (rows, kernel)


def _quantized_backward(
    types: Types, operands: tuple[Array, Array], gradient: Array
) -> tuple[Array, Array]:
    rows, kernel = operands
    by_rows = _multiply(gradient, kernel, over=(1, 1), types=types.of_rows)
    by_kernel = _multiply(rows, gradient, over=(0, 0), types=types.of_kernel)
    return by_rows.astype(rows.dtype), by_kernel.astype(kernel.dtype)


_quantized_product.defvjp(_quantized_forward, _quantized_backward)


def _multiply(left: Array, right: Array, *, over: tuple[int, int], types: TypePair | None) -> Array:
    """Return the float32 product of two matrices, summed over the axes `over`."""
    axes = (((over[0],), (over[1],)), ((), ()))
    if types is None:
        return jax.lax.dot_general(left, right, axes, preferred_element_type=jnp.float32)
    left, left_scale = _quantize(left, over[0], types[0])
    right, right_scale = _quantize(right, over[1], types[1])
    sums = jnp.int32 if types[0] == jnp.int8 else jnp.float32
    product = jax.lax.dot_general(left, right, axes, preferred_element_type=sums)
    return product.astype(jnp.float32) * left_scale[:, None] * right_scale


def _quantize(x: Array, axis: int, dtype: Any) -> tuple[Array, Array]:
    """Quantize a matrix to 8 bits; also return the scales to multiply the entries by."""
    is_integer = jnp.issubdtype(dtype, jnp.integer)
    largest = float(jnp.iinfo(dtype).max if is_integer else jnp.finfo(dtype).max)
    x = x.astype(jnp.float32)
    # The lower bound avoids a division by 0 if all entries are 0.
    scale = jnp.maximum(jnp.max(jnp.abs(x), axis=axis), 1e-30) / largest
    x = x / jnp.expand_dims(scale, axis)
    return (jnp.round(x) if is_integer else x).astype(dtype), scale


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


def ragged_product_by_device(
    rows: Float[Array, "P N n"],
    kernels: Float[Array, "E n m"],
    sizes: Int[Array, "P G"],
    *,
    filled: int,
    axes: tuple[str, str],
) -> Float[Array, "P N m"]:
    """Compute `ragged_product` of each part of a batch on the device that has the part.

    The devices gather the shards of the kernels along `embed`, and reduce-scatter their gradients.
    XLA by itself would gather the sorted rows of all devices, and all-reduce products of kernels'
    shards.

    Args:
        rows: P parts, as many as the devices that shard the batch; 1 is computed without sharding.
        kernels: sharded over `experts`, G matrices on each device.
        sizes: the number of rows of each group that a device has.
        filled: the average number of rows of a part that belong to a group, for counts of FLOPs.
        axes: logical axes of n and m, `embed` and `mlp` or the reverse.
    """
    if len(rows) == 1:
        return ragged_product(rows[0], kernels, sizes[0])[None]
    of_rows, of_out = (None if name == "embed" else f"activation_{name}" for name in axes)
    columns = partitioning.mesh_axes("embed")
    summed = partitioning.mesh_axes("mlp") if of_rows and partitioning.parts("mlp") > 1 else ()

    def multiply(rows: Array, kernels: Array, sizes: Array) -> Array:
        kernels = jax.lax.all_gather(kernels, columns, axis=1 + axes.index("embed"), tiled=True)
        out = _product_of_filled(rows[0], kernels, sizes[0], filled=filled)[None]
        return jax.lax.psum(out, summed)

    specs = nn.logical_to_mesh_axes
    return jax.shard_map(
        multiply,
        in_specs=(
            specs(("activation_batch", None, of_rows)),
            specs(("experts", *axes)),
            specs(("activation_batch", None)),
        ),
        out_specs=specs(("activation_batch", None, of_out)),
        check_vma=False,
    )(rows, kernels, sizes)


def _product_of_filled(rows: Array, kernels: Array, sizes: Array, *, filled: int) -> Array:
    if filled == len(rows):
        return ragged_product(rows, kernels, sizes)

    def product(rows: Array, kernels: Array, sizes: Array) -> Array:
        return ragged_product(rows, kernels, sizes)

    # `training.flops` reads this name.
    product.__name__ = f"product_of_{filled}_in_{len(rows)}_rows"
    return jax.jit(product)(rows, kernels, sizes)


@jax.custom_vjp
def _by_blocks(rows: Array, kernels: Array, sizes: Array) -> Array:
    return _ragged_forward(rows, kernels, sizes)[0]


def _ragged_forward(rows, kernels, sizes):
    out = ragged_product_of_rows(rows, kernels, sizes, equation="bn,nm->bm")
    return out, (rows, kernels, sizes)


def _ragged_backward(residuals, gradient):
    rows, kernels, sizes = residuals
    gradient = gradient.astype(rows.dtype)
    by_rows = ragged_product_of_rows(gradient, kernels, sizes, equation="bm,nm->bn")
    by_kernels = ragged_product_of_groups(rows, gradient, sizes)
    return by_rows, by_kernels.astype(kernels.dtype), None


_by_blocks.defvjp(_ragged_forward, _ragged_backward)


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
            start = begin + number * block
            part = jax.lax.dynamic_slice_in_dim(padded, start, block)
            part = float32_sums(equation, part, kernel).astype(out.dtype)
            return jax.lax.dynamic_update_slice_in_dim(out, part, start, 0)

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
            start = begin + number * block
            in_group = start + jnp.arange(block) < end
            part = jax.lax.dynamic_slice_in_dim(rows, start, block)
            part = jnp.where(in_group[:, None], part, 0)
            by_part = jax.lax.dynamic_slice_in_dim(gradient, start, block)
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
