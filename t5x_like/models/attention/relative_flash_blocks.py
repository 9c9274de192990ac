"""The blocks that a call of the kernels consists of: their grid, their operands, their scores."""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from t5x_like.models.attention.relative_flash_tiles import LANES, Settings, positions

_BLOCKS = (512, 256, LANES)
HIDDEN = -1e30  # the score of a pair that the mask hides


@dataclasses.dataclass(frozen=True)
class Grid:
    """The blocks of a call: H heads, B rows, n blocks of queries, m blocks of keys."""

    settings: Settings
    batch: int
    heads: int
    width: int
    queries: int
    keys: int

    @classmethod
    def of(cls, settings: Settings, query: Array, key: Array) -> "Grid":
        batch, heads, width, queries = query.shape
        return cls(settings, batch, heads, width, queries, key.shape[3])

    @property
    def query_block(self) -> int:
        return next(size for size in _BLOCKS if self.queries % size == 0)

    @property
    def key_block(self) -> int:
        return next(size for size in _BLOCKS if self.keys % size == 0)

    @property
    def query_blocks(self) -> int:
        return self.queries // self.query_block

    @property
    def key_blocks(self) -> int:
        return self.keys // self.key_block

    def is_seen(self, i: Any, j: Any) -> Any:
        """Whether block i of the queries attends to any of block j of the keys."""
        if not self.settings.causal:
            return True
        return (i + 1) * self.query_block > j * self.key_block

    def tile_scratch(self) -> Any:
        """Memory for one array for each tile: a head's biases, or the sums of their gradients."""
        return pltpu.VMEM((len(self.settings.tiles), LANES, LANES), jnp.float32)

    def compile(self, **specs: Any) -> Any:
        # Heads are independent. The rows of a head come one after another, since they share the
        # tiles of its biases.
        order: Any = ("parallel", "arbitrary", "arbitrary", "arbitrary")
        return functools.partial(
            pl.pallas_call,
            interpret=self.settings.interpret,
            compiler_params=pltpu.CompilerParams(dimension_semantics=order),
            **specs,
        )

    def cost(
        self, products: int, *, once: list[Any], again: list[Any], blocks: int
    ) -> pl.CostEstimate:
        """The work of a call, for the compiler's scheduler and `plan`.

        Args:
            products: matrix products of all pairs that are seen.
            once: the arrays that are read or written once.
            again: those of which a block is read for each pair of blocks that is seen.
            blocks: the number of blocks of such an array.
        """
        places = itertools.product(range(self.query_blocks), range(self.key_blocks))
        seen = sum(bool(self.is_seen(i, j)) for i, j in places)
        pairs = self.batch * self.heads * self.query_block * self.key_block * seen
        once_bytes, again_bytes = (
            sum(x.size * x.dtype.itemsize for x in arrays) for arrays in (once, again)
        )
        return pl.CostEstimate(
            flops=2 * products * pairs * self.width,
            transcendentals=pairs,
            bytes_accessed=once_bytes + again_bytes * seen // blocks,
        )


def table_operand(settings: Settings, table: Array) -> tuple[list[Array], list[Any]]:
    """The table as an operand of a kernel, and where it lies; none without a bias."""
    if not settings.steps:
        return [], []
    return [table], [pl.BlockSpec(memory_space=pltpu.SMEM)]


def segment_specs(grid: Grid, of_queries: Any, of_keys: Any) -> list[Any]:
    """The blocks of the segments of queries and keys, from the places of blocks of both."""

    def without_head(index: Any) -> Any:
        def row(*place: Any) -> tuple:
            b, _, _, block = index(*place)
            return b, 0, block

        return row

    return [
        pl.BlockSpec((1, 1, grid.query_block), without_head(of_queries)),
        pl.BlockSpec((1, 1, grid.key_block), without_head(of_keys)),
    ]


def masked_scores(
    grid: Grid, tiles: Any, own: Any, read: Any, query: Any, key: Any, i: Any, j: Any
) -> tuple[Array, Array]:
    """The masked scores of a block, [keys, queries], and which pairs the mask allows."""
    scores = dot(key[0, 0], query[0, 0], contract=(0, 0))
    if grid.settings.steps:
        scores += jnp.concatenate(
            [
                jnp.concatenate([tiles[place] for place in places], axis=1)
                for places in tile_places(grid, i, j)
            ],
            axis=0,
        )
    # The segments of the keys as a column.
    column = jnp.broadcast_to(read[0], (LANES, grid.key_block)).T
    column = jnp.concatenate([column] * (grid.query_block // LANES), axis=1)
    allowed = (column == own[0]) & (column > 0)
    if grid.settings.causal:
        start = j * grid.key_block - i * grid.query_block
        allowed &= positions(start, scores.shape) <= 0
    return jnp.where(allowed, scores, HIDDEN), allowed


def tile_places(grid: Grid, i: Any, j: Any) -> list[list[Any]]:
    """Which of the settings' tiles each tile of a block is, row by row."""
    diagonals = grid.settings.tiles
    high, wide = grid.key_block // LANES, grid.query_block // LANES
    first = j * high - i * wide
    return [
        [
            jnp.clip(first + down - right, diagonals[0], diagonals[-1]) - diagonals[0]
            for right in range(wide)
        ]
        for down in range(high)
    ]


def dot(left: Array, right: Array, *, contract: tuple[int, int]) -> Array:
    """The product over these axes of two matrices, with float32 sums."""
    axes = (((contract[0],), (contract[1],)), ((), ()))
    return jax.lax.dot_general(left, right, axes, preferred_element_type=jnp.float32)
