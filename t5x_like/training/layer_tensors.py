"""Tensors of single layers within stacked parameters, found by their logical axes.

Parameters of scanned layers are stacked, [N, ...], and attention kernels have a head axis,
[D, H, K]. Per-tensor statistics of an optimizer must not depend on that: each belongs to the matrix
of one layer, as if every layer were a parameter of its own. The logical axes show which axes are
layers and heads; shapes alone could not.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

# Axes along which independent tensors are stacked.
STACKED = frozenset({"layers", "inner_layers", "experts"})
# T5's attention matrices are [D, H*K]: a head axis and the width of a head after it are one axis.
HEADS, HEAD_WIDTH = frozenset({"heads", "kv_heads", "single_head"}), "kv"


def rms(x: Array, spec: PartitionSpec) -> Array:
    """The root mean square of each layer's tensor, float32, with the axes of x at size 1."""
    axis = tuple(d for d in range(x.ndim) if not spec or spec[d] not in STACKED)
    return jnp.sqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), axis=axis, keepdims=True))


def is_matrix(spec: PartitionSpec) -> bool:
    """Whether one layer's tensor is more than a vector of gains or biases."""
    return len(groups_of(spec)) > 1


def matrices(axes: Any) -> Any:
    """Which parameters of a tree of PartitionSpecs are matrices."""
    return jax.tree.map(is_matrix, axes)


def groups_of(spec: PartitionSpec) -> list[tuple[int, ...]]:
    """The positions of the sides of one layer's tensor: heads and their width are one side."""
    groups: list[tuple[int, ...]] = []
    for position, name in enumerate(spec):
        if name == HEAD_WIDTH and position and spec[position - 1] in HEADS:
            groups[-1] += (position,)
        elif name not in STACKED:
            groups.append((position,))
    return groups


def two_sides(
    shape: tuple[int, ...], spec: PartitionSpec, *, min_size: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The positions of the axes to average over for the row and the column moments, or None."""
    groups = groups_of(spec or PartitionSpec(*[None] * len(shape)))

    def size(group: tuple[int, ...]) -> int:
        return math.prod(shape[position] for position in group)

    largest = sorted(groups, key=size)[-2:]
    if len(largest) < 2 or size(largest[0]) < min_size:
        return None
    row_side, column_side = sorted(largest)
    return column_side, row_side


def without(sequence: tuple, positions: tuple[int, ...]) -> tuple:
    """The items at all other positions."""
    return tuple(item for position, item in enumerate(sequence) if position not in positions)
