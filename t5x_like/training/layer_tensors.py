"""Tensors of single layers within stacked parameters, found by their logical axes.

Parameters of scanned layers are stacked, [N, ...], and attention kernels have a head axis,
[D, H, K]. Per-tensor statistics of an optimizer must not depend on that: they are computed for the
matrix of each layer, as if every layer were a separate parameter. The logical axes show which axes
are layers and heads, which shapes cannot. A parameter without axis names is a single tensor.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

# Axes along which independent tensors are stacked.
STACKED = frozenset({"layers", "inner_layers", "experts", "directions"})
# T5's attention matrices are [D, H*K]: a head axis and the head width after it count as one axis.
HEADS, HEAD_WIDTH = frozenset({"heads", "kv_heads", "single_head"}), "kv"
# The gates of a recurrent cell and the width of each gate count as one axis: [D, 4*C].
GATES, CELL = "gates", "mlp"


def rms(x: Array, spec: PartitionSpec) -> Array:
    """Return the root mean square of each layer's tensor, float32; its axes are kept as size 1."""
    axis = tuple(d for d in range(x.ndim) if not spec or spec[d] not in STACKED)
    return jnp.sqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), axis=axis, keepdims=True))


def matrices(axes: Any) -> Callable[[Any], Any]:
    """Return a function that finds the matrices in a tree of parameters with these axes.

    Args:
        axes: a tree of PartitionSpecs, see `optimizers.build`.

    Returns:
        A function from the parameters or their shapes to a tree of booleans.
    """

    def find(params: Any) -> Any:
        return jax.tree.map_with_path(
            lambda path, param, spec: is_matrix(
                spec, dimensions=param.ndim, name=jax.tree_util.keystr(path[-1:], simple=True)
            ),
            params,
            axes,
        )

    return find


def is_matrix(spec: PartitionSpec, *, dimensions: int, name: str) -> bool:
    """Return whether a layer's tensor is a matrix, with weight decay, and not a gain or bias.

    A parameter whose last axis is heads is a bias on attention scores, even if it is a table of two
    axes. Without axis names, a parameter named `bias`, as in Flax's modules, is not a matrix, since
    the biases of `nn.DenseGeneral` may have several axes.

    Args:
        spec: the logical axes of the parameter.
        dimensions: the number of axes of the parameter.
        name: the last part of the parameter's path.
    """
    named = any(axis is not None and axis not in STACKED for axis in spec)
    if not named and name == "bias":
        return False
    if named and spec[-1] in HEADS:
        return False
    return len(groups_of(_complete(spec, dimensions))) > 1


def _complete(spec: PartitionSpec, dimensions: int) -> PartitionSpec:
    return PartitionSpec(*spec, *[None] * (dimensions - len(spec)))


def groups_of(spec: PartitionSpec) -> list[tuple[int, ...]]:
    """Return the axis positions of each side of one layer's tensor.

    The axes of heads and of their width form one side, and so do the gates of a recurrent cell and
    their width.
    """
    groups: list[tuple[int, ...]] = []
    for position, name in enumerate(spec):
        before = spec[position - 1] if position else None
        if (name == HEAD_WIDTH and before in HEADS) or (name == CELL and before == GATES):
            groups[-1] += (position,)
        elif name not in STACKED:
            groups.append((position,))
    return groups


def two_sides(
    shape: tuple[int, ...], spec: PartitionSpec, *, min_size: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the axes to average over for the row and for the column moments, or None.

    None means that the tensor is not factored: it has fewer than two sides of `min_size`.
    """
    groups = groups_of(_complete(spec, len(shape)))

    def size(group: tuple[int, ...]) -> int:
        return math.prod(shape[position] for position in group)

    largest = sorted(groups, key=size)[-2:]
    if len(largest) < 2 or size(largest[0]) < min_size:
        return None
    row_side, column_side = sorted(largest)
    return column_side, row_side


def without(sequence: tuple, positions: tuple[int, ...]) -> tuple:
    """Return the items that are not at these positions."""
    return tuple(item for position, item in enumerate(sequence) if position not in positions)
