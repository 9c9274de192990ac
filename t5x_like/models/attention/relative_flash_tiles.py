"""The biases of relative positions on the chip: a few tiles, which blocks of scores consist of."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LANES = 128  # keys and queries of a tile; their numbers are multiples of this


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the kernels are compiled for.

    Attributes:
        causal: a query attends to no key after it.
        steps: the bias as a step function of key position minus query position: (the first
            position of a step, its bucket), in ascending order; the first step begins anywhere
            below. Empty: no bias.
        interpret: run on any device, slowly.
    """

    causal: bool
    steps: tuple[tuple[int, int], ...]
    interpret: bool

    @property
    def tiles(self) -> range:
        """The diagonals of tiles whose biases differ.

        A tile has LANES keys by LANES queries, and all of a diagonal have the same biases; its
        number is how many tiles the keys are after the queries. Tiles on diagonals below the first
        and above the last here are as those two, which lie in the first and the last step.
        """
        changes = [first for first, _ in self.steps[1:]] or [0]
        return range((changes[0] - LANES) // LANES, -(-(changes[-1] + LANES - 1) // LANES) + 1)

    def steps_of_tile(self, diagonal: int) -> list[tuple[int, int]]:
        """The steps that a tile has positions of, the first of them as if it began below."""
        low, high = diagonal * LANES - LANES + 1, diagonal * LANES + LANES - 1
        before = [step for step in self.steps[1:] if step[0] <= low]
        within = [step for step in self.steps[1:] if low < step[0] <= high]
        return [before[-1] if before else self.steps[0], *within]


def write_tiles(settings: Settings, tiles: Any, *table: Any, head: Any) -> None:
    """Write the biases of a head: one tile for each diagonal."""
    if not table:
        return
    for place, diagonal in enumerate(settings.tiles):
        (_, bucket), *later = settings.steps_of_tile(diagonal)
        bias = jnp.full((LANES, LANES), table[0][head, bucket])
        position = positions(diagonal * LANES, (LANES, LANES))
        for first, bucket in later:
            bias = jnp.where(position >= first, table[0][head, bucket], bias)
        tiles[place] = bias


def positions(start: Any, shape: tuple[int, ...]) -> Array:
    """Key position minus query position of a block [keys, queries]; `start`: of its corner."""
    return (
        start
        + jax.lax.broadcasted_iota(jnp.int32, shape, 0)
        - jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    )


def bucket_sums(settings: Settings, tile_sums: Any, *, lanes: int) -> Float[Array, "1 lanes"]:
    """The gradient of a head's row of the table, from the sums of its tiles."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, lanes), 1)
    out = jnp.zeros((1, lanes), jnp.float32)
    for place, diagonal in enumerate(settings.tiles if settings.steps else ()):
        position = positions(diagonal * LANES, (LANES, LANES))
        steps = settings.steps_of_tile(diagonal)
        ends = [first for first, _ in steps[1:]]
        for n, (_, bucket) in enumerate(steps):
            within = tile_sums[place]
            if n > 0:
                within = jnp.where(position >= ends[n - 1], within, 0.0)
            if n < len(ends):
                within = jnp.where(position < ends[n], within, 0.0)
            total = jnp.sum(jnp.sum(within, axis=0, keepdims=True), axis=1, keepdims=True)
            out += jnp.where(lane == bucket, total, 0.0)
    return out
