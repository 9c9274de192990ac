"""Parameters from the tensors of a file to the devices that hold their parts, and back."""

import functools
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Array, Int

from t5x_like.hf import weight_map
from t5x_like.hf.weight_map import Index, Piece

_MOST_GATHERED = 2**24  # bytes of a parameter that are gathered on every device at once
_Bounds = tuple[tuple[int, int], ...]  # the start and the stop on each axis


def assembled(
    leaf: jax.ShapeDtypeStruct, parts: list[Piece], read: Callable[[str, Index], np.ndarray]
) -> jax.Array:
    """A parameter, of which this process reads what its devices hold, one part after the other.

    Args:
        leaf: its shape, dtype and sharding; None as the sharding for one device.
        parts: the pieces that it consists of.
        read: a function from the name of a tensor and an index of it to the numbers there.
    """

    def part(bounds: _Bounds) -> np.ndarray:
        index = tuple(slice(*each) for each in bounds)
        return weight_map.assemble(leaf.shape, index, parts, read, dtype=leaf.dtype)

    if leaf.sharding is None:
        return jax.device_put(part(tuple((0, size) for size in leaf.shape)))
    holders: dict[_Bounds, list[jax.Device]] = {}
    for device, index in leaf.sharding.addressable_devices_indices_map(leaf.shape).items():
        assert index is not None
        spans = (span.indices(size) for span, size in zip(index, leaf.shape, strict=True))
        holders.setdefault(tuple(span[:2] for span in spans), []).append(device)
    held: list[jax.Array] = []
    for bounds, devices in holders.items():
        array = part(bounds)
        # Waited for, so that the host has no second part before the first one is on its devices.
        held += jax.block_until_ready([jax.device_put(array, device) for device in devices])
    return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, held)


def copy_part(array: Array, index: tuple[int, ...], place: np.ndarray) -> None:
    """Copy the part of a parameter at indices of its first axes to the host.

    All processes that hold parts of it call this.

    Args:
        place: a NumPy array of the part's shape.
    """
    part = _at(array, np.array(index, np.int32)) if index else array
    if not isinstance(part, jax.Array):
        place[...] = part
    elif not part.is_fully_addressable:
        _gather(part, place)
    else:  # shard by shard: `np.asarray` of a sharded array keeps its copy as long as the array
        for shard in part.addressable_shards:
            if shard.replica_id == 0:
                place[shard.index] = shard.data


@jax.jit
def _at(array: Array, index: Int[Array, " n"]) -> Array:
    """The part of an array at indices of its first axes: one program for all indices."""
    for n in range(index.shape[0]):
        array = jax.lax.dynamic_index_in_dim(array, index[n], keepdims=False)
    return array


def _gather(array: Array, place: np.ndarray) -> None:
    """Copy an array of several processes, some places of an axis at a time: each device has all."""
    kept = array.sharding.shard_shape(array.shape)
    whole = [axis for axis in range(array.ndim) if kept[axis] == array.shape[axis]]
    if not whole:  # to slice an axis that is divided, the compiler would gather it
        place[...] = multihost_utils.process_allgather(array, tiled=True)
        return
    axis = max(whole, key=lambda axis: array.shape[axis])
    size = array.shape[axis]
    most = max(1, _MOST_GATHERED * size // array.nbytes)
    places = np.moveaxis(place, axis, 0)
    for start in range(0, size, most):
        part = _slice(array, start, number=min(most, size - start), axis=axis)
        found = multihost_utils.process_allgather(part, tiled=True)
        places[start : start + most] = np.moveaxis(found, axis, 0)


@functools.partial(jax.jit, static_argnames=("number", "axis"))
def _slice(array: Array, start: int, *, number: int, axis: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(array, start, number, axis=axis)
