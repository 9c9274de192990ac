"""Flash attention with T5's relative position bias, computed on the chip: Pallas kernels for TPUs.

A kernel call has a grid of blocks of scores. The bias of a block is assembled from tiles. Only a
few tiles differ, since the bias depends only on the distance.
"""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from t5x_like import partitioning
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.cores import CONTEXT, Core, drop_keys
from t5x_like.nn.attention.positions import AttentionMask, RelativeBias

LANES = 128  # keys and queries per tile; T and S are padded to a multiple


@dataclasses.dataclass(frozen=True)
class KernelSettings:
    """The static settings of the kernels.

    Attributes:
        causal: whether a query attends to no key after it.
        steps: the bucket as a step function of key position minus query position: (first position
            of a step, its bucket), in ascending order; the first step also covers all lower
            positions. Empty: no bias.
        interpret: whether to interpret the kernels, which works on any device but is slow.
    """

    causal: bool
    steps: tuple[tuple[int, int], ...]
    interpret: bool

    @property
    def tiles(self) -> range:
        """The diagonals of tiles with different biases.

        A tile has LANES keys by LANES queries. All tiles of a diagonal have the same biases; the
        number of a diagonal is the tile index of the keys minus the tile index of the queries.
        Tiles on lower diagonals equal the first tile here, and tiles on higher diagonals the last
        tile, since these two lie entirely in the first and in the last step.
        """
        changes = [first for first, _ in self.steps[1:]] or [0]
        return range((changes[0] - LANES) // LANES, -(-(changes[-1] + LANES - 1) // LANES) + 1)

    def steps_of_tile(self, diagonal: int) -> list[tuple[int, int]]:
        """Return the steps that occur in a tile; the first covers the tile's lowest positions."""
        low, high = diagonal * LANES - LANES + 1, diagonal * LANES + LANES - 1
        before = [step for step in self.steps[1:] if step[0] <= low]
        within = [step for step in self.steps[1:] if low < step[0] <= high]
        return [before[-1] if before else self.steps[0], *within]


def write_tiles(settings: KernelSettings, tiles: Any, *table: Any, head: Any) -> None:
    """Write the biases of a head, one tile for each diagonal."""
    if not table:
        return
    for index, diagonal in enumerate(settings.tiles):
        (_, bucket), *later = settings.steps_of_tile(diagonal)
        bias = jnp.full((LANES, LANES), table[0][head, bucket])
        position = positions(diagonal * LANES, (LANES, LANES))
        for first, bucket in later:
            bias = jnp.where(position >= first, table[0][head, bucket], bias)
        tiles[index] = bias


def positions(start: Any, shape: tuple[int, ...]) -> Array:
    """Return key position minus query position in a block [keys, queries]; `start` at [0, 0]."""
    return (
        start
        + jax.lax.broadcasted_iota(jnp.int32, shape, 0)
        - jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    )


def bucket_sums(settings: KernelSettings, tile_sums: Any, *, lanes: int) -> Float[Array, "1 lanes"]:
    """Return the gradient of a head's row of the table, from the summed gradients of its tiles."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, lanes), 1)
    out = jnp.zeros((1, lanes), jnp.float32)
    for index, diagonal in enumerate(settings.tiles if settings.steps else ()):
        position = positions(diagonal * LANES, (LANES, LANES))
        steps = settings.steps_of_tile(diagonal)
        ends = [first for first, _ in steps[1:]]
        for n, (_, bucket) in enumerate(steps):
            within = tile_sums[index]
            if n > 0:
                within = jnp.where(position >= ends[n - 1], within, 0.0)
            if n < len(ends):
                within = jnp.where(position < ends[n], within, 0.0)
            total = jnp.sum(jnp.sum(within, axis=0, keepdims=True), axis=1, keepdims=True)
            out += jnp.where(lane == bucket, total, 0.0)
    return out


# ---- The blocks of a call: their grid, operands and scores.


_BLOCKS = (512, 256, LANES)
HIDDEN = -1e30  # the score of a masked pair


@dataclasses.dataclass(frozen=True)
class Grid:
    """The blocks of a call: H heads, B rows, n blocks of queries, m blocks of keys."""

    settings: KernelSettings
    batch: int
    heads: int
    width: int
    queries: int
    keys: int

    @classmethod
    def of(cls, settings: KernelSettings, query: Array, key: Array) -> "Grid":
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
        """Return whether any query of block i attends to any key of block j."""
        if not self.settings.causal:
            return True
        return (i + 1) * self.query_block > j * self.key_block

    def tile_scratch(self) -> Any:
        """Return scratch memory for all tiles: a head's biases, or their summed gradients."""
        return pltpu.VMEM((len(self.settings.tiles), LANES, LANES), jnp.float32)

    def compile(self, **specs: Any) -> Any:
        # Heads are independent. The rows of a head run in sequence, since they share the tiles of
        # its biases.
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
        """Return the cost of a call, for the compiler's scheduler and `plan`.

        Args:
            products: the number of matrix products per pair of blocks that is not masked.
            once: the arrays that are read or written once.
            again: the arrays that are read block by block, for each pair that is not masked.
            blocks: the number of blocks of an array in `again`.
        """
        block_pairs = itertools.product(range(self.query_blocks), range(self.key_blocks))
        seen = sum(bool(self.is_seen(i, j)) for i, j in block_pairs)
        pairs = self.batch * self.heads * self.query_block * self.key_block * seen
        once_bytes, again_bytes = (
            sum(x.size * x.dtype.itemsize for x in arrays) for arrays in (once, again)
        )
        return pl.CostEstimate(
            flops=2 * products * pairs * self.width,
            transcendentals=pairs,
            bytes_accessed=once_bytes + again_bytes * seen // blocks,
        )


def table_operand(settings: KernelSettings, table: Array) -> tuple[list[Array], list[Any]]:
    """Return the table as a list of kernel operands, with its specs; empty without a bias."""
    if not settings.steps:
        return [], []
    return [table], [pl.BlockSpec(memory_space=pltpu.SMEM)]


def segment_specs(grid: Grid, of_queries: Any, of_keys: Any) -> list[Any]:
    """Return the block specs of the query and key segments, from the index maps of both."""

    def without_head(index: Any) -> Any:
        def row(*grid_index: Any) -> tuple:
            b, _, _, block = index(*grid_index)
            return b, 0, block

        return row

    return [
        pl.BlockSpec((1, 1, grid.query_block), without_head(of_queries)),
        pl.BlockSpec((1, 1, grid.key_block), without_head(of_keys)),
    ]


def masked_scores(
    grid: Grid,
    tiles: Any,
    query_segments: Any,
    key_segments: Any,
    query: Any,
    key: Any,
    i: Any,
    j: Any,
) -> tuple[Array, Array]:
    """Return the masked scores of a block, [keys, queries], and the pairs that are not masked."""
    scores = dot(key[0, 0], query[0, 0], contract=(0, 0))
    if grid.settings.steps:
        scores += jnp.concatenate(
            [
                jnp.concatenate([tiles[tile] for tile in row], axis=1)
                for row in tile_numbers(grid, i, j)
            ],
            axis=0,
        )
    # Transpose the key segments to a column.
    column = jnp.broadcast_to(key_segments[0], (LANES, grid.key_block)).T
    column = jnp.concatenate([column] * (grid.query_block // LANES), axis=1)
    allowed = (column == query_segments[0]) & (column > 0)
    if grid.settings.causal:
        start = j * grid.key_block - i * grid.query_block
        allowed &= positions(start, scores.shape) <= 0
    return jnp.where(allowed, scores, HIDDEN), allowed


def tile_numbers(grid: Grid, i: Any, j: Any) -> list[list[Any]]:
    """Return the index in `KernelSettings.tiles` of each tile of a block, row by row."""
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
    """Return the product of two matrices over these axes, with float32 sums."""
    axes = (((contract[0],), (contract[1],)), ((), ()))
    return jax.lax.dot_general(left, right, axes, preferred_element_type=jnp.float32)


# ---- The kernels: the output of attention, and its gradients.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
    settings: KernelSettings,
    query: Float[Array, "B H K T"],
    key: Float[Array, "B H K S"],
    value: Float[Array, "B H K S"],
    table: Float[Array, "H b"],
    query_segments: Int[Array, "B T"],
    key_segments: Int[Array, "B S"],
) -> Float[Array, "B H K T"]:
    """Compute softmax(q k^T + bias) v by blocks of scores (Dao et al. 2022, FlashAttention).

    Neither scores nor biases are written to memory: the biases of a head are computed from its row
    of `table`, and the backward pass writes only the gradient of that row.

    Arrays have positions last, so that heads narrower than the lanes of a TPU need no padding; T
    and S are multiples of LANES.

    Args:
        table: the bias of each bucket, float32; without columns if `settings` has no steps.
        query_segments, key_segments: a query attends to the keys of its segment, except segment
            0. A query without keys has an output of 0.
    """
    return _forward(settings, query, key, value, table, query_segments, key_segments)[0]


def _forward(
    settings: KernelSettings,
    query: Array,
    key: Array,
    value: Array,
    table: Array,
    query_segments: Array,
    key_segments: Array,
) -> tuple[Array, Any]:
    grid = Grid.of(settings, query, key)
    rows = jax.ShapeDtypeStruct((grid.batch, grid.heads, 1, grid.queries), jnp.float32)

    def of_queries(h: Any, b: Any, i: Any, j: Any) -> tuple:
        return b, h, 0, i

    def of_keys(h: Any, b: Any, i: Any, j: Any) -> tuple:
        if settings.causal:  # a masked block is not fetched: the index stays at the last one
            j = jnp.minimum(j, jax.lax.div((i + 1) * grid.query_block - 1, grid.key_block))
        return b, h, 0, j

    queries = pl.BlockSpec((1, 1, grid.width, grid.query_block), of_queries)
    keys = pl.BlockSpec((1, 1, grid.width, grid.key_block), of_keys)
    tables, table_specs = table_operand(settings, table)
    out, log_sums = grid.compile(
        name="relative_flash_forward",
        grid=(grid.heads, grid.batch, grid.query_blocks, grid.key_blocks),
        in_specs=[*table_specs, *segment_specs(grid, of_queries, of_keys), queries, keys, keys],
        out_specs=[queries, pl.BlockSpec((1, 1, 1, grid.query_block), of_queries)],
        out_shape=[jax.ShapeDtypeStruct(query.shape, query.dtype), rows],
        scratch_shapes=[
            grid.tile_scratch(),
            pltpu.VMEM((1, grid.query_block), jnp.float32),
            pltpu.VMEM((1, grid.query_block), jnp.float32),
            pltpu.VMEM((grid.width, grid.query_block), jnp.float32),
        ],
        cost_estimate=grid.cost(
            2, once=[query, query, rows], again=[key, value], blocks=grid.key_blocks
        ),
    )(
        functools.partial(_forward_kernel, grid)
    )(*tables, query_segments[:, None], key_segments[:, None], query, key, value)
    out, log_sums = checkpoint_name(out, CONTEXT), checkpoint_name(log_sums, CONTEXT)
    return out, (query, key, value, table, query_segments, key_segments, out, log_sums)


def _forward_kernel(grid: Grid, *refs: Any) -> None:
    """Process query block i and key block j of a row and head: a running softmax over j."""
    *table, query_segments, key_segments, query, key, value = refs[:-6]
    out, log_sums, tiles, largest, total, summed = refs[-6:]
    head, row, i, j = (pl.program_id(axis) for axis in range(4))

    @pl.when((row == 0) & (i == 0) & (j == 0))
    def _() -> None:
        write_tiles(grid.settings, tiles, *table, head=head)

    @pl.when(j == 0)
    def _() -> None:
        largest[...] = jnp.full(largest.shape, HIDDEN)
        total[...] = jnp.zeros(total.shape)
        summed[...] = jnp.zeros(summed.shape)

    @pl.when(grid.is_seen(i, j))
    def _() -> None:
        scores, allowed = masked_scores(grid, tiles, query_segments, key_segments, query, key, i, j)
        before = largest[...]
        now = jnp.maximum(before, jnp.max(scores, axis=0, keepdims=True))
        weights = jnp.where(allowed, jnp.exp(scores - now), 0.0)
        shrink = jnp.exp(before - now)
        largest[...] = now
        total[...] = total[...] * shrink + jnp.sum(weights, axis=0, keepdims=True)
        summed[...] = summed[...] * shrink + dot(
            value[0, 0], weights.astype(value.dtype), contract=(1, 0)
        )

    @pl.when(j == grid.key_blocks - 1)
    def _() -> None:
        divisor = jnp.where(total[...] > 0.0, total[...], 1.0)  # 0 for a query without keys
        out[0, 0] = (summed[...] / divisor).astype(out.dtype)
        log_sums[0, 0] = largest[...] + jnp.log(divisor)


def _backward(settings: KernelSettings, residuals: Any, gradient: Array) -> tuple[Any, ...]:
    query, key, value, table, query_segments, key_segments, out, log_sums = residuals
    grid = Grid.of(settings, query, key)
    # For each query, the sum over keys of weight times its gradient (Dao et al. 2022, B.2).
    centers = jnp.sum(out.astype(jnp.float32) * gradient.astype(jnp.float32), 2, keepdims=True)

    queries, ready_queries, rows, keys, segments = _backward_blocks(grid)
    tables, table_specs = table_operand(settings, table)
    lanes = -(-max(table.shape[1], 1) // LANES) * LANES
    sums = jax.ShapeDtypeStruct((grid.heads, 1, lanes), jnp.float32)
    by_query, by_key, by_value, by_table = grid.compile(
        name="relative_flash_backward",
        grid=(grid.heads, grid.batch, grid.key_blocks, grid.query_blocks),
        in_specs=[*table_specs, *segments, *(queries, keys, keys, queries, rows, rows)],
        out_specs=[
            *(ready_queries, keys, keys),
            pl.BlockSpec((1, 1, lanes), lambda h, b, j, i: (h, 0, 0)),
        ],
        out_shape=[*(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (query, key, value)), sums],
        scratch_shapes=[
            grid.tile_scratch(),
            grid.tile_scratch(),
            pltpu.VMEM((grid.query_blocks, grid.width, grid.query_block), jnp.float32),
            pltpu.VMEM((grid.width, grid.key_block), jnp.float32),
            pltpu.VMEM((grid.width, grid.key_block), jnp.float32),
        ],
        cost_estimate=grid.cost(
            5,
            once=[query, *[key, value] * 2],
            again=[query, gradient, log_sums, centers],
            blocks=grid.query_blocks,
        ),
    )(functools.partial(_backward_kernel, grid))(
        *tables,
        *(query_segments[:, None], key_segments[:, None]),
        *(query, key, value, gradient, log_sums, centers),
    )
    return by_query, by_key, by_value, by_table[:, 0, : table.shape[1]], None, None


def _backward_blocks(grid: Grid) -> tuple[Any, ...]:
    """Return the block specs of queries, their gradients, per-query scalars, keys and segments.

    The grid's axes are heads, rows, blocks of keys and blocks of queries.
    """

    def of_queries(h: Any, b: Any, j: Any, i: Any) -> tuple:
        if grid.settings.causal:  # a block that does not attend to these keys is not fetched
            i = jnp.maximum(i, jax.lax.div(j * grid.key_block, grid.query_block))
        return b, h, 0, i

    def of_keys(h: Any, b: Any, j: Any, i: Any) -> tuple:
        return b, h, 0, j

    def of_ready_queries(h: Any, b: Any, j: Any, i: Any) -> tuple:
        # Complete only after the last block of keys: until then nothing is written.
        return b, h, 0, jnp.where(j == grid.key_blocks - 1, i, 0)

    return (
        pl.BlockSpec((1, 1, grid.width, grid.query_block), of_queries),
        pl.BlockSpec((1, 1, grid.width, grid.query_block), of_ready_queries),
        pl.BlockSpec((1, 1, 1, grid.query_block), of_queries),
        pl.BlockSpec((1, 1, grid.width, grid.key_block), of_keys),
        segment_specs(grid, of_queries, of_keys),
    )


def _backward_kernel(grid: Grid, *refs: Any) -> None:
    """Recompute key block j and query block i of a row and head, and add up the gradients.

    The gradients of keys and values are summed over i, the gradients of all queries of the row over
    j, and the gradients of the biases over all rows of the head.
    """
    table, operands = refs[:-17], refs[-17:-9]
    by_query, by_key, by_value, by_table, tiles, *sums = refs[-9:]
    tile_sums, query_sums, key_sums, value_sums = sums
    head, row, j, i = (pl.program_id(axis) for axis in range(4))
    at_first = (row == 0) & (j == 0) & (i == 0)
    last_i, last_j = i == grid.query_blocks - 1, j == grid.key_blocks - 1

    @pl.when(at_first)
    def _() -> None:
        write_tiles(grid.settings, tiles, *table, head=head)
        tile_sums[...] = jnp.zeros(tile_sums.shape)

    @pl.when(i == 0)
    def _() -> None:
        key_sums[...] = value_sums[...] = jnp.zeros(key_sums.shape)

    @pl.when(j == 0)
    def _() -> None:
        query_sums[i] = jnp.zeros(query_sums.shape[1:])

    @pl.when(grid.is_seen(i, j))
    def _() -> None:
        _add_block(grid, operands, tiles, sums, i, j)

    @pl.when(last_j)
    def _() -> None:
        by_query[0, 0] = query_sums[i].astype(by_query.dtype)

    @pl.when(last_i)
    def _() -> None:
        by_key[0, 0] = key_sums[...].astype(by_key.dtype)
        by_value[0, 0] = value_sums[...].astype(by_value.dtype)

    @pl.when(last_i & last_j & (row == grid.batch - 1))
    def _() -> None:
        by_table[0] = bucket_sums(grid.settings, tile_sums, lanes=by_table.shape[2])


def _add_block(grid: Grid, operands: Any, tiles: Any, sums: Any, i: Any, j: Any) -> None:
    """Add the contribution of a block of scores to the sums of all gradients."""
    query_segments, key_segments, query, key, value, gradient, log_sums, centers = operands
    tile_sums, query_sums, key_sums, value_sums = sums
    scores, allowed = masked_scores(grid, tiles, query_segments, key_segments, query, key, i, j)
    weights = jnp.where(allowed, jnp.exp(scores - log_sums[0, 0]), 0.0)
    by_weights = dot(value[0, 0], gradient[0, 0], contract=(0, 0))
    by_scores = weights * (by_weights - centers[0, 0])
    _add_to_tiles(grid, tile_sums, by_scores, i, j)
    weights, by_scores = weights.astype(value.dtype), by_scores.astype(query.dtype)
    value_sums[...] += dot(gradient[0, 0], weights, contract=(1, 1))
    key_sums[...] += dot(query[0, 0], by_scores, contract=(1, 1))
    query_sums[i] += dot(key[0, 0], by_scores, contract=(1, 0))


def _add_to_tiles(grid: Grid, tile_sums: Any, by_scores: Array, i: Any, j: Any) -> None:
    if not grid.settings.steps:
        return
    for down, row in enumerate(tile_numbers(grid, i, j)):
        for right, tile in enumerate(row):
            rows, columns = (slice(n * LANES, (n + 1) * LANES) for n in (down, right))
            tile_sums[tile] += by_scores[rows, columns]


attend.defvjp(_forward, _backward)


# ---- The attention core that calls the kernels.


_FEW = 64  # fewer queries than this would be padded to more than twice as many
# Bytes that the backward pass keeps on the chip: the gradients of a head's queries, the biases and
# their gradients. libtpu gives a kernel 16 MiB on v4 and v5e; blocks and registers need 4 MiB.
_MOST_ON_CHIP = 10 * 2**20


def _relative_flash(
    query: Float[Array, "B T H K"],
    keys_values: KeyValues,
    *,
    bias: Float[Array, "B H T S"] | RelativeBias | None,
    mask: AttentionMask,
    scale: float,
    dropout: float = 0.0,
    dropout_rng: Array | None = None,
    dropout_broadcast: bool = False,
) -> Float[Array, "B T H K"]:
    """Compute attention on a TPU by blocks of scores, with a `RelativeBias` or no bias.

    Causality, segments and padding are masked within the kernel. Dropout with one mask for all
    queries of a head, as in T5, is computed as dropout of the values: the weights of a dropped key
    are dropped for every query. On other devices the kernel is interpreted, which is slow and meant
    for tests.

    Raises:
        ValueError: the kernel does not support the bias, the dropout or the mask; or heads are
            grouped, or there are more queries or distances than fit on the chip.
    """
    queries, keys = query.shape[1], keys_values.length
    drops = dropout_rng is not None and dropout > 0.0
    _check(query, keys_values, bias, mask, drops_singly=drops and not dropout_broadcast)
    assert bias is None or isinstance(bias, RelativeBias)
    if drops:
        assert dropout_rng is not None
        heads = query.shape[2]
        keys_values = drop_keys(keys_values, heads=heads, rate=dropout, rng=dropout_rng)
    settings, table = _settings(bias, heads=query.shape[2], causal=mask.visibility == "causal")
    _check_fits(settings, query)
    query_segments, key_segments = mask.segments(batch=query.shape[0], queries=queries, keys=keys)
    out = _on_shards(
        settings,
        _positions_last(jnp.swapaxes(query * scale, 1, 2)),
        _positions_last(keys_values.key),
        _positions_last(keys_values.value),
        table.astype(query.dtype).astype(jnp.float32),  # rounded as in dense attention
        jnp.pad(query_segments, [(0, 0), (0, -queries % LANES)]),
        jnp.pad(key_segments, [(0, 0), (0, -keys % LANES)]),
    )
    return out[..., :queries].transpose(0, 3, 1, 2)


def _leaves_to_dense(
    *, queries: int, keys: int, bias: RelativeBias | None, mask: AttentionMask
) -> bool:
    """Return whether to use dense attention: for few queries, or for queries after a cache."""
    # With as many keys as queries the first query is in slot 0, since all slots have queries.
    same = queries == keys or (bias is None and mask.visibility == "full")
    return queries < _FEW or not same


relative_flash_core = Core(
    _relative_flash,
    names_output=True,
    knows_relative_bias=True,
    leaves_to_dense=_leaves_to_dense,
)


def _check(
    query: Array, keys_values: KeyValues, bias: Any, mask: AttentionMask, *, drops_singly: bool
) -> None:
    problem = ""
    if not isinstance(bias, RelativeBias | None):
        problem = "adds only T5's relative position bias to the scores, and this network another"
    elif query.shape[2] != keys_values.key.shape[1]:
        problem = "has no grouped heads: there must be as many of keys as of queries"
    elif drops_singly:
        problem = "has dropout of the attention weights only where model.dropout_broadcast=True"
    elif (
        type(mask) is not AttentionMask
        or not (mask.prefix is mask.key_slots is mask.window is None)
        or mask.visibility == "prefix"
    ):
        problem = "knows causal and full masks and segments, and this mask is another"
    if problem:
        raise ValueError(f"model.attention='relative_flash' {problem}: set model.attention='dense'")


def _positions_last(x: Float[Array, "B H T K"]) -> Float[Array, "B H K t"]:
    """Transpose an array for the kernel, and pad the positions to whole tiles."""
    return jnp.pad(jnp.swapaxes(x, 2, 3), [(0, 0)] * 3 + [(0, -x.shape[2] % LANES)])


def _settings(
    bias: RelativeBias | None, *, heads: int, causal: bool
) -> tuple[KernelSettings, Float[Array, "H b"]]:
    """Return the kernel's static settings, and the table transposed to [H, b]."""
    interpret = partitioning.platform() != "tpu"
    if bias is None:
        return KernelSettings(causal, (), interpret), jnp.zeros((heads, 0))
    # Beyond `max_distance` on either side the bucket no longer changes.
    positions = np.arange(-bias.max_distance - 1, bias.max_distance + 2)
    buckets = bias.buckets(positions)
    changes = [0, *(np.flatnonzero(np.diff(buckets)) + 1)]
    steps = tuple((int(positions[n]), int(buckets[n])) for n in changes)
    settings = KernelSettings(causal, steps, interpret)
    return settings, bias.table.T


def _check_fits(settings: KernelSettings, query: Float[Array, "B T H K"]) -> None:
    _, length, _, width = query.shape
    needed = 4 * (length * width + 2 * len(settings.tiles) * LANES**2)
    if needed > _MOST_ON_CHIP:
        raise ValueError(
            f"model.attention='relative_flash' needs {needed / 2**20:.0f} MiB on the chip for "
            f"{length} queries and this model.relative_max_distance, and may have "
            f"{_MOST_ON_CHIP // 2**20}: set model.attention='dense'"
        )


def _on_shards(
    settings: KernelSettings,
    query: Float[Array, "B H K T"],
    key: Float[Array, "B H K S"],
    value: Float[Array, "B H K S"],
    table: Float[Array, "H b"],
    query_segments: Int[Array, "B T"],
    key_segments: Int[Array, "B S"],
) -> Float[Array, "B H K T"]:
    """Run the kernel on each device's rows and heads, since XLA cannot partition a kernel."""
    run: Any = functools.partial(attend, settings)
    if jax.sharding.get_abstract_mesh().empty:
        return run(query, key, value, table, query_segments, key_segments)
    batch, heads = (partitioning.mesh_axes(f"activation_{name}") for name in ("batch", "heads"))
    spec, rows = PartitionSpec(batch, heads), PartitionSpec(batch)
    return jax.shard_map(
        run,
        in_specs=(spec, spec, spec, PartitionSpec(heads), rows, rows),
        out_specs=spec,
        check_vma=False,
    )(query, key, value, table, query_segments, key_segments)
