"""Blocks of tokens with their neighboring blocks, for local attention in linear time."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


def into_blocks(x: Float[Array, "B L ..."], block: int) -> Float[Array, "B n W ..."]:
    """Split rows into n blocks of W = `block` tokens; the last is padded with zeros."""
    batch, length = x.shape[:2]
    number = -(-length // block)
    x = jnp.pad(x, [(0, 0), (0, number * block - length)] + [(0, 0)] * (x.ndim - 2))
    return x.reshape(batch, number, block, *x.shape[2:])


def with_neighbors(x: Float[Array, "B n W ..."]) -> Float[Array, "B n S ..."]:
    """Concatenate each block with its two neighbors (S = 3 W), which wrap around at the ends."""
    return jnp.concatenate([jnp.roll(x, shift, axis=1) for shift in (1, 0, -1)], axis=2)


def neighbors_exist(number: int, block: int) -> Bool[np.ndarray, "n S"]:
    """Return False for the neighbors of `with_neighbors` that wrap around, and otherwise True."""
    neighbor = np.arange(number)[:, None] + np.array([-1, 0, 1])
    return np.repeat((neighbor >= 0) & (neighbor < number), block, axis=1)


def distances(block: int) -> Int[np.ndarray, "W S"]:
    """Return the slot differences from each token of a block to the tokens of `with_neighbors`."""
    return np.arange(3 * block) - block - np.arange(block)[:, None]
