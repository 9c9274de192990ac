"""Tensors of single layers within stacked parameters, found by their logical axes.

Parameters of scanned layers are stacked, [N, ...], and attention kernels have a head axis,
[D, H, K]. Per-tensor statistics of an optimizer must not depend on that: each belongs to the matrix
of one layer, as if every layer were a parameter of its own. The logical axes show which axes are
layers and heads; shapes alone could not. A parameter without names is one tensor of its shape.
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
# T5's attention matrices are [D, H*K]: a head axis and the width of a head after it are one axis.
HEADS, HEAD_WIDTH = frozenset({"heads", "kv_heads", "single_head"}), "kv"
# The gates of a recurrent cell and the numbers of each are one axis: [D, 4*C].
GATES, CELL = "gates", "mlp"


def rms(x: Array, spec: PartitionSpec) -> Array:
    """The root mean square of each layer's tensor, float32, with the axes of x at size 1."""
    axis = tuple(d for d in range(x.ndim) if not spec or spec[d] not in STACKED)
    return jnp.sqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), axis=axis, keepdims=True))


def matrices(axes: Any) -> Callable[[Any], Any]:
    """Return the function that finds the matrices in a tree of parameters with these axes.

    Args:
        axes: a tree of PartitionSpecs, as of `optimizers.build`.

    Returns:
        A function of the parameters or their shapes: a tree like them of True and False.
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
    """Whether the tensor of a layer is more than gains or biases, so that it decays.

    A number for each head, which is added to scores, is a bias, though a table of them has two
    axes. Without names of axes, the name of the parameter tells a bias from a matrix, as Flax's own
    modules give it: `nn.DenseGeneral` has biases of several axes.

    Args:
        spec: the logical axes of the parameter.
        dimensions: the number of its axes.
        name: its own name, the last of its path.
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
    """The positions of the sides of one layer's tensor.

    Heads and their width are one side, and so are the gates of a cell.
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
    """The positions of the axes to average over for the row and the column moments, or None."""
    groups = groups_of(_complete(spec, len(shape)))

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
