"""Copy parameters from the tensors of a file to the devices that hold their shards, and back.

In both directions the host holds only one piece of a parameter at a time.
"""

import ctypes
import functools
import math
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from t5x_like.hf import weight_map
from t5x_like.hf.weight_map import Index, Piece

_PIECE = 2**24  # bytes of a parameter copied between the host and a device at once
_MOST_GATHERED = 2**22  # bytes of a parameter that the devices of a process gather at once
# Up to so many bytes a shard goes to its devices in one piece, which compiles no program.
_MOST_WHOLE = 2**26
_SMALL = 2**20  # bytes; free memory is not returned to the kernel for smaller tensors
_Bounds = tuple[tuple[int, int], ...]  # the start and the stop on each axis


def assembled(
    leaf: jax.ShapeDtypeStruct, parts: list[Piece], read: Callable[[str, Index], np.ndarray]
) -> jax.Array:
    """Read a parameter: this process reads the shards of its devices, one after the other.

    Args:
        leaf: the shape, dtype and sharding of the parameter; None as the sharding for one device.
        parts: the pieces that the parameter consists of.
        read: returns the part of the tensor with a name at an index.
    """

    def part(bounds: _Bounds) -> np.ndarray:
        index = tuple(slice(*each) for each in bounds)
        return weight_map.assemble(leaf.shape, index, parts, read, dtype=leaf.dtype)

    full = tuple((0, size) for size in leaf.shape)
    if leaf.sharding is None:
        return _put(part, full, [None], leaf.dtype)[0]
    holders: dict[_Bounds, list[jax.Device | None]] = {}
    for device, index in leaf.sharding.addressable_devices_indices_map(leaf.shape).items():
        assert index is not None
        spans = (span.indices(size) for span, size in zip(index, leaf.shape, strict=True))
        holders.setdefault(tuple(span[:2] for span in spans), []).append(device)
    held: list[jax.Array] = []
    for bounds, devices in holders.items():
        held += _put(part, bounds, devices, leaf.dtype)
    return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, held)


def _put(
    part: Callable[[_Bounds], np.ndarray],
    bounds: _Bounds,
    devices: list[jax.Device | None],
    dtype: np.dtype,
) -> list[jax.Array]:
    """Put a shard of a parameter on each of its devices, None for the default device.

    A large shard is copied piece by piece. Each piece is waited for, so that the host does not make
    another before the first is on the devices.
    """
    shape = tuple(stop - start for start, stop in bounds)
    if math.prod(shape) * dtype.itemsize <= _MOST_WHOLE:
        array = part(bounds)
        held = jax.block_until_ready([jax.device_put(array, device) for device in devices])
    else:
        held = [jnp.zeros(shape, dtype, device=device) for device in devices]
        axis, number = _cut(shape, dtype, most=_PIECE)
        first = bounds[axis][0]
        for start, stop in _spans(shape[axis], number):
            piece = part((*bounds[:axis], (first + start, first + stop), *bounds[axis + 1 :]))
            held = [
                _write(buffer, jax.device_put(piece, device), start, axis=axis)
                for buffer, device in zip(held, devices, strict=True)
            ]
            jax.block_until_ready(held)
    _return_free_memory(math.prod(shape) * dtype.itemsize)
    return held


@functools.partial(jax.jit, static_argnames="axis", donate_argnums=0)
def _write(buffer: Array, piece: Array, start: int, *, axis: int) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(buffer, piece, start, axis)


def copy_part(array: Array, index: tuple[int, ...], out: np.ndarray) -> None:
    """Copy the part of a parameter at indices of its first axes to the host of the first process.

    All processes that hold shards of the parameter call this; only the first writes the result.

    Args:
        out: the NumPy array to write to, of the part's shape.
    """
    _return_free_memory(out.nbytes)
    part = _at(array, np.array(index, np.int32)) if index else array
    if not isinstance(part, jax.Array):
        out[...] = part
    elif not part.is_fully_addressable and not part.is_fully_replicated:
        _gather(part, out)
    elif jax.process_index() == 0:
        for shard in part.addressable_shards:
            if shard.replica_id == 0:
                _copy_shard(shard.data, out[shard.index])


@jax.jit
def _at(array: Array, index: Int[Array, " n"]) -> Array:
    """Return the part of an array at indices of its first axes; one program serves all indices."""
    for n in range(index.shape[0]):
        array = jax.lax.dynamic_index_in_dim(array, index[n], keepdims=False)
    return array


def _copy_shard(shard: Array, out: np.ndarray) -> None:
    """Copy an array of one device to the host.

    JAX keeps the host's copy of an array on a GPU or TPU as long as the array exists, here the
    parameter. So slices are copied, which are freed together with their copies.
    """
    if not shard.ndim or next(iter(shard.devices())).platform == "cpu":
        out[...] = shard  # on a CPU the array is a view
        return
    axis, number = _cut(shard.shape, shard.dtype, most=_PIECE)
    axis_first = np.moveaxis(out, axis, 0)
    for start, stop in _spans(shard.shape[axis], number):
        piece = _slice(shard, start, number=stop - start, axis=axis)
        axis_first[start:stop] = np.moveaxis(np.asarray(piece), axis, 0)


def _gather(array: Array, out: np.ndarray) -> None:
    """Copy an array of several processes to the first process, a slice of every shard at a time.

    All devices get the slices: JAX has no collective whose result is in only one process.
    """
    shard_shape = array.sharding.shard_shape(array.shape)
    copies = jax.local_device_count() * (array.size // math.prod(shard_shape))
    axis, number = _cut(shard_shape, array.dtype, most=_MOST_GATHERED // copies)
    size = shard_shape[axis]
    axis_first = np.moveaxis(out, axis, 0)
    for start, stop in _spans(size, number):
        _return_free_memory(axis_first.nbytes)
        slices = jax.block_until_ready(_gathered(array, start, number=stop - start, axis=axis))
        if jax.process_index() == 0:
            parts = np.moveaxis(np.asarray(slices.addressable_data(0)), axis, 0)
            for n, part in enumerate(np.split(parts, array.shape[axis] // size)):
                axis_first[n * size + start : n * size + stop] = part


def _gathered(array: Array, start: int, *, number: int, axis: int) -> Array:
    """Concatenate slices of each device's shard along an axis, replicated on all devices."""
    sharding = array.sharding
    assert isinstance(sharding, NamedSharding)
    return _gathering(sharding, number, axis)(array, start)


@functools.cache
def _gathering(sharding: NamedSharding, number: int, axis: int) -> Callable[[Array, int], Array]:
    spec = PartitionSpec(*sharding.spec)
    slices = jax.shard_map(
        functools.partial(jax.lax.dynamic_slice_in_dim, slice_size=number, axis=axis),
        mesh=sharding.mesh,
        in_specs=(spec, PartitionSpec()),
        out_specs=spec,
    )
    return jax.jit(slices, out_shardings=NamedSharding(sharding.mesh, PartitionSpec()))


@functools.partial(jax.jit, static_argnames=("number", "axis"))
def _slice(array: Array, start: int, *, number: int, axis: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(array, start, number, axis=axis)


def _cut(shape: tuple[int, ...], dtype: np.dtype, *, most: int) -> tuple[int, int]:
    """Return the axis along which to cut an array, and the length of a piece of `most` bytes.

    It is the first axis (of layers or rows), unless a single layer or row has more bytes; then it
    is the longest axis.
    """
    size = math.prod(shape) * dtype.itemsize
    axis = 0 if size <= most * shape[0] else max(range(len(shape)), key=shape.__getitem__)
    return axis, max(1, min(shape[axis], most * shape[axis] // max(1, size)))


def _spans(size: int, number: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + number, size)) for start in range(0, size, number))


def _return_free_memory(size: int) -> None:
    """Return the free memory of this process to the kernel, if its C library is glibc.

    glibc keeps freed arrays of up to 32 MB for later arrays, in total more than a tensor.

    Args:
        size: the bytes of a tensor; for a small tensor nothing is done, since a call takes a
            millisecond.
    """
    if size < _SMALL:
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
