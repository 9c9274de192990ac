"""Rows of a table of embeddings that devices share: what is moved are rows, never the table."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like import partitioning


def look_up(
    table: Float[Array, "V D"], tokens: Int[Array, "B L"], *, axis: str, dtype: Any
) -> Float[Array, "B L D"]:
    """The rows of `tokens`, of type `dtype`; gradients are summed in the type of the table.

    On a mesh that cuts the D columns (`fsdp`), the devices that have the columns of a row between
    them look up each other's tokens, and exchange what they found. So a device sends its batch's
    embeddings, and backward their gradients: neither the table nor its gradient, which is summed
    where it stays, over the replicas alone.

    Args:
        axis: logical name of the first axis of the table.
    """
    if not partitioning.cuts_batch(tokens.shape[0]):
        # Keep rows whole on each device: otherwise XLA moves all gathered rows between devices.
        table = nn.with_logical_constraint(table, (axis, "activation_embed"))
        return jnp.take(table, tokens, axis=0).astype(dtype)
    own, columns = partitioning.mesh_axes(axis), partitioning.mesh_axes("embed")
    rows = nn.logical_to_mesh_axes(("activation_batch",))
    return jax.shard_map(
        functools.partial(_of_a_device, own=own, columns=columns, dtype=dtype),
        in_specs=(nn.logical_to_mesh_axes((axis, "embed")), rows),
        out_specs=rows,
    )(table, tokens)


def _of_a_device(
    table: Float[Array, "V D"],
    tokens: Int[Array, "B L"],
    *,
    own: tuple[str, ...],
    columns: tuple[str, ...],
    dtype: Any,
) -> Float[Array, "B L D"]:
    """The rows of a device's tokens.

    Args:
        table: its part of the table.
        own, columns: the mesh axes that cut the vocabulary and the columns.
    """
    tokens = jax.lax.all_gather(tokens, columns, axis=0, tiled=True)
    if own:
        index, vocabulary = jax.lax.axis_index(own), jax.lax.psum(table.shape[0], own)
        local = tokens - index * table.shape[0]
        known = (local >= 0) & (local < table.shape[0])
        x = jnp.take(table, jnp.where(known, local, 0), axis=0)
        x = jax.lax.psum(jnp.where(known[..., None], x, 0).astype(dtype), own)
        x = jnp.where((tokens < vocabulary)[..., None], x, jnp.nan)  # as `jnp.take`
    else:
        x = jnp.take(table, tokens, axis=0).astype(dtype)
    return jax.lax.all_to_all(x, columns, split_axis=0, concat_axis=2, tiled=True)
