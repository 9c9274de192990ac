"""Put a parameter together from the tensors of a file, on the devices that hold its parts."""

import functools
from collections.abc import Callable

import jax
import numpy as np

from t5x_like.hf import weight_map
from t5x_like.hf.weight_map import Index, Piece


def assembled(
    leaf: jax.ShapeDtypeStruct, parts: list[Piece], read: Callable[[str, Index], np.ndarray]
) -> jax.Array:
    """A parameter, of which this process reads what its devices hold.

    Args:
        leaf: its shape, dtype and sharding; None as the sharding for one device.
        parts: the pieces that it consists of.
        read: a function from the name of a tensor and an index of it to the numbers there.
    """

    @functools.cache  # devices may hold the same part
    def part(*bounds: tuple[int, int]) -> np.ndarray:
        index = tuple(slice(*each) for each in bounds)
        return weight_map.assemble(leaf.shape, index, parts, read, dtype=leaf.dtype)

    def read_part(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        spans = (span.indices(size) for span, size in zip(index, leaf.shape, strict=True))
        return part(*(span[:2] for span in spans))

    if leaf.sharding is None:
        return jax.device_put(read_part((slice(None),) * len(leaf.shape)))
    return jax.make_array_from_callback(leaf.shape, leaf.sharding, read_part)
