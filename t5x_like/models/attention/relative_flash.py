"""Attention through our kernels for TPUs, which compute T5's relative position bias themselves."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from t5x_like import partitioning
from t5x_like.models.attention.cache import KeyValues
from t5x_like.models.attention.cores import Core, drop_keys
from t5x_like.models.attention.masks import AttentionMask
from t5x_like.models.attention.relative_buckets import RelativeBias
from t5x_like.models.attention.relative_flash_kernel import attend
from t5x_like.models.attention.relative_flash_tiles import LANES, Settings

_FEW = 64  # fewer queries than this would be padded to more than twice as many
# Bytes that the backward pass sums on the chip: gradients of a head's queries, biases and theirs.
# libtpu gives a kernel 16 MiB on v4 and v5e, and the blocks and registers need 4.
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
    """Attention on a TPU a block of scores at a time, with the biases of a `RelativeBias` or none.

    Causality, segments and padding are masks within the kernel. Dropout with one mask for all
    queries of a head, T5's, is dropout of the values: the weights of a dropped key are dropped for
    every query. Elsewhere than on a TPU the kernel is interpreted, which is slow and for checking.

    Raises:
        ValueError: a bias, dropout or a mask that the kernel does not have, grouped heads, or more
            queries or distances than fit on the chip.
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
    own, read = mask.segments(batch=query.shape[0], queries=queries, keys=keys)
    out = _on_shards(
        settings,
        _positions_last(jnp.swapaxes(query * scale, 1, 2)),
        _positions_last(keys_values.key),
        _positions_last(keys_values.value),
        table.astype(query.dtype).astype(jnp.float32),  # the numbers that dense attention adds
        jnp.pad(own, [(0, 0), (0, -queries % LANES)]),
        jnp.pad(read, [(0, 0), (0, -keys % LANES)]),
    )
    return out[..., :queries].transpose(0, 3, 1, 2)


def _leaves_to_dense(
    *, queries: int, keys: int, bias: RelativeBias | None, mask: AttentionMask
) -> bool:
    """Fewer than 64 queries, as in decoding, and queries that follow a cache."""
    # Where keys are as many as queries the first query is in slot 0: all slots have queries.
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
        problem = "adds T5's relative position bias alone to the scores, and this network another"
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
    """The array as the kernel takes it, padded to whole tiles."""
    return jnp.pad(jnp.swapaxes(x, 2, 3), [(0, 0)] * 3 + [(0, -x.shape[2] % LANES)])


def _settings(
    bias: RelativeBias | None, *, heads: int, causal: bool
) -> tuple[Settings, Float[Array, "H b"]]:
    """What the kernel is compiled for, and its table."""
    interpret = partitioning.platform() != "tpu"
    if bias is None:
        return Settings(causal, (), interpret), jnp.zeros((heads, 0))
    # From the first distance that is in the last bucket for sure, on both sides.
    positions = np.arange(-bias.max_distance - 1, bias.max_distance + 2)
    buckets = bias.buckets(positions)
    changes = [0, *(np.flatnonzero(np.diff(buckets)) + 1)]
    steps = tuple((int(positions[n]), int(buckets[n])) for n in changes)
    settings = Settings(causal, steps, interpret)
    return settings, bias.table.T


def _check_fits(settings: Settings, query: Float[Array, "B T H K"]) -> None:
    _, length, _, width = query.shape
    needed = 4 * (length * width + 2 * len(settings.tiles) * LANES**2)
    if needed > _MOST_ON_CHIP:
        raise ValueError(
            f"model.attention='relative_flash' needs {needed / 2**20:.0f} MiB on the chip for "
            f"{length} queries and this model.relative_max_distance, and may have "
            f"{_MOST_ON_CHIP // 2**20}: set model.attention='dense'"
        )


def _on_shards(
    settings: Settings,
    query: Float[Array, "B H K T"],
    key: Float[Array, "B H K S"],
    value: Float[Array, "B H K S"],
    table: Float[Array, "H b"],
    own: Int[Array, "B T"],
    read: Int[Array, "B S"],
) -> Float[Array, "B H K T"]:
    """The kernel on each device's own rows and heads: the compiler cannot divide a kernel."""
    run: Any = functools.partial(attend, settings)
    if jax.sharding.get_abstract_mesh().empty:
        return run(query, key, value, table, own, read)
    batch, heads = (partitioning.mesh_axes(f"activation_{name}") for name in ("batch", "heads"))
    whole, rows = PartitionSpec(batch, heads), PartitionSpec(batch)
    return jax.shard_map(
        run,
        in_specs=(whole, whole, whole, PartitionSpec(heads), rows, rows),
        out_specs=whole,
        check_vma=False,
    )(query, key, value, table, own, read)
