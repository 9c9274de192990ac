"""Pallas kernels for TPUs: flash attention with a bias by relative position, and its gradients."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from t5x_like.models.attention.cores import KEPT
from t5x_like.models.attention.relative_flash_blocks import (
    HIDDEN,
    Grid,
    dot,
    masked_scores,
    segment_specs,
    table_operand,
    tile_places,
)
from t5x_like.models.attention.relative_flash_tiles import LANES, Settings, bucket_sums, write_tiles


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
    settings: Settings,
    query: Float[Array, "B H K T"],
    key: Float[Array, "B H K S"],
    value: Float[Array, "B H K S"],
    table: Float[Array, "H b"],
    own: Int[Array, "B T"],
    read: Int[Array, "B S"],
) -> Float[Array, "B H K T"]:
    """softmax(q k^T + bias) v a block of scores at a time (Dao et al. 2022, FlashAttention).

    Neither scores nor biases are written to memory: the biases of a head come from its row of
    `table`, and the backward pass sums the gradient of that row alone.

    Arrays have positions last, so that heads narrower than the lanes of a TPU need no padding; T
    and S are multiples of LANES.

    Args:
        table: the bias of each bucket, float32; without columns where `settings` has no steps.
        own, read: the segments of queries and keys: a query attends to the keys of its segment,
            and to none of segment 0. A query without any key has an output of 0.
    """
    return _forward(settings, query, key, value, table, own, read)[0]


def _forward(
    settings: Settings,
    query: Array,
    key: Array,
    value: Array,
    table: Array,
    own: Array,
    read: Array,
) -> tuple[Array, Any]:
    grid = Grid.of(settings, query, key)
    rows = jax.ShapeDtypeStruct((grid.batch, grid.heads, 1, grid.queries), jnp.float32)

    def of_queries(h: Any, b: Any, i: Any, j: Any) -> tuple:
        return b, h, 0, i

    def of_keys(h: Any, b: Any, i: Any, j: Any) -> tuple:
        if settings.causal:  # a block that is not seen is not fetched: the last one stays
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
    )(*tables, own[:, None], read[:, None], query, key, value)
    out, log_sums = checkpoint_name(out, KEPT), checkpoint_name(log_sums, KEPT)
    return out, (query, key, value, table, own, read, out, log_sums)


def _forward_kernel(grid: Grid, *refs: Any) -> None:
    """Block i of the queries and j of the keys of a row and head: a running softmax over j."""
    *table, own, read, query, key, value, out, log_sums, tiles, largest, total, summed = refs
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
        scores, allowed = masked_scores(grid, tiles, own, read, query, key, i, j)
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
        whole = jnp.where(total[...] > 0.0, total[...], 1.0)  # 0: a query without a key
        out[0, 0] = (summed[...] / whole).astype(out.dtype)
        log_sums[0, 0] = largest[...] + jnp.log(whole)


def _backward(settings: Settings, kept: Any, gradient: Array) -> tuple[Any, ...]:
    query, key, value, table, own, read, out, log_sums = kept
    grid = Grid.of(settings, query, key)
    # The sum of each query's gradients by its weights, times the weights (Dao et al. 2022, B.2).
    centers = jnp.sum(out.astype(jnp.float32) * gradient.astype(jnp.float32), 2, keepdims=True)

    queries, ready_queries, rows, keys, segments = _backward_blocks(grid)
    tables, table_specs = table_operand(settings, table)
    lanes = -(-max(table.shape[1], 1) // LANES) * LANES
    sums = jax.ShapeDtypeStruct((grid.heads, 1, lanes), jnp.float32)
    by_query, by_key, by_value, by_table = grid.compile(
        name="relative_flash_backward",
        grid=(grid.heads, grid.batch, grid.key_blocks, grid.query_blocks),
        in_specs=[
            *table_specs,
            *segments,
            *(queries, keys, keys, queries, rows, rows),
        ],
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
    )(
        functools.partial(_backward_kernel, grid)
    )(*tables, own[:, None], read[:, None], query, key, value, gradient, log_sums, centers)
    return by_query, by_key, by_value, by_table[:, 0, : table.shape[1]], None, None


def _backward_blocks(grid: Grid) -> tuple[Any, ...]:
    """The blocks of queries, of their gradients, of numbers for each, of keys, and of segments.

    The grid's axes are heads, rows, blocks of keys and blocks of queries.
    """

    def of_queries(h: Any, b: Any, j: Any, i: Any) -> tuple:
        if grid.settings.causal:  # a block that does not see these keys is not fetched
            i = jnp.maximum(i, jax.lax.div(j * grid.key_block, grid.query_block))
        return b, h, 0, i

    def of_keys(h: Any, b: Any, j: Any, i: Any) -> tuple:
        return b, h, 0, j

    def of_ready_queries(h: Any, b: Any, j: Any, i: Any) -> tuple:
        # Whole after the last block of keys: until then nothing is written.
        return b, h, 0, jnp.where(j == grid.key_blocks - 1, i, 0)

    return (
        pl.BlockSpec((1, 1, grid.width, grid.query_block), of_queries),
        pl.BlockSpec((1, 1, grid.width, grid.query_block), of_ready_queries),
        pl.BlockSpec((1, 1, 1, grid.query_block), of_queries),
        pl.BlockSpec((1, 1, grid.width, grid.key_block), of_keys),
        segment_specs(grid, of_queries, of_keys),
    )


def _backward_kernel(grid: Grid, *refs: Any) -> None:
    """Block j of the keys and i of the queries of a row and head, computed anew.

    The gradients of keys and values are summed over i, those of all queries of the row over j, and
    those of the biases over all rows of the head.
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
    """Add what a block of scores gives to the sums of all gradients."""
    own, read, query, key, value, gradient, log_sums, centers = operands
    tile_sums, query_sums, key_sums, value_sums = sums
    scores, allowed = masked_scores(grid, tiles, own, read, query, key, i, j)
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
    for down, places in enumerate(tile_places(grid, i, j)):
        for right, place in enumerate(places):
            rows, columns = (slice(n * LANES, (n + 1) * LANES) for n in (down, right))
            tile_sums[place] += by_scores[rows, columns]


attend.defvjp(_forward, _backward)
