"""Weights in 8 bits: each group of 64 numbers has a scale (Dettmers et al. 2021, section 2.1).

A kernel or an embedding is stored as int8, and beside it the scale of each group, the largest
absolute value divided by 127, in float32: 1.06 bytes a number. Numbers are rounded to the nearest
multiple of their scale. Biases, norms, and arrays whose size is no multiple of 64 stay as they are.
"""

from collections.abc import Mapping
from typing import Any, Self

import flax.linen as nn
import flax.struct
import flax.traverse_util
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int8, PyTree

GROUP = 64
SCALE = ".scale"  # after the name of a parameter
_QUANTIZED = ("kernel", "embedding")
_STACK = "/block/"  # in the name of a parameter that a scan over layers slices


class Int8Weight(flax.struct.PyTreeNode, nn.meta.AxisMetadata[Array]):
    """A parameter in 8 bits, which a layer reads as float32: Flax unboxes it in `Module.param`.

    Attributes:
        values: the rounded numbers, in units of their scale.
        scale: G scales of consecutive numbers, in rows by the first axis of `values` if its rows
            are whole groups, so that a scan over layers slices both.
    """

    values: Int8[Array, "..."]
    scale: Float[Array, "... G"]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the parameter."""
        return self.values.shape

    def unbox(self) -> Float[Array, "..."]:
        """Return the parameter in float32."""
        groups = self.values.astype(jnp.float32).reshape(-1, GROUP)
        return (groups * self.scale.reshape(-1, 1)).reshape(self.values.shape)

    def replace_boxed(self, val: Any) -> Any:
        """Return a new value as it is."""
        return val

    def add_axis(self, index: int, params: Any) -> Self:
        """Return the parameter unchanged: its axes have no names."""
        return self

    def remove_axis(self, index: int, params: Any) -> Self:
        """Return the parameter unchanged: its axes have no names."""
        return self


def quantize(params: PyTree) -> PyTree:
    """Return the parameters with kernels and embeddings in 8 bits.

    Args:
        params: nested dicts of arrays.
    """
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    quantized = {name: _quantized(x) if _fits(name, x) else x for name, x in flat.items()}
    return flax.traverse_util.unflatten_dict(quantized, sep="/")


def _fits(name: str, array: Array) -> bool:
    is_sliced = _STACK in f"/{name}"
    size = array[0].size if is_sliced and array.ndim else array.size
    return name.endswith(_QUANTIZED) and not size % GROUP


@jax.jit
def _quantized(array: Array) -> Int8Weight:
    groups = array.astype(jnp.float32).reshape(-1, GROUP)
    scale = jnp.max(jnp.abs(groups), axis=1) / 127
    rounded = jnp.round(groups / jnp.where(scale > 0, scale, 1)[:, None])
    rows = () if array[0].size % GROUP else (len(array),)
    return Int8Weight(rounded.astype(jnp.int8).reshape(array.shape), scale.reshape(*rows, -1))


def to_arrays(params: Mapping[str, Any]) -> dict[str, Array]:
    """Return the parameters by name as arrays, scales beside the parameters in 8 bits."""
    arrays: dict[str, Array] = {}
    for name, x in params.items():
        arrays |= (
            {name: x.values, name + SCALE: x.scale} if isinstance(x, Int8Weight) else {name: x}
        )
    return arrays


def of_arrays(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Return the parameters by name that `to_arrays` made arrays of."""
    return {
        name: Int8Weight(x, arrays[name + SCALE]) if name + SCALE in arrays else x
        for name, x in arrays.items()
        if not name.endswith(SCALE)
    }


def number_of_bytes(params: PyTree) -> int:
    """Return the bytes of all arrays."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(params))
