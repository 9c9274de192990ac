"""Attention with splash attention, the Pallas kernel for TPUs that is part of JAX."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from t5x_like import partitioning
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.cores import KEPT, Core
from t5x_like.nn.attention.masks import AttentionMask

_LANES = 128  # block sizes are multiples of this
_BLOCKS = (512, 256, _LANES)
_WITHOUT = ("TPU v2", "TPU v3")  # kernels there lack the needed products of 16-bit operands
_PADDING = -1  # the segment of the padding that this module adds


def _splash(
    query: Float[Array, "B T H K"],
    keys_values: KeyValues,
    *,
    bias: Float[Array, "B H T S"] | None,
    mask: AttentionMask,
    scale: float,
    dropout: float = 0.0,
    dropout_rng: Array | None = None,
    dropout_broadcast: bool = False,
) -> Float[Array, "B T H K"]:
    """Compute attention on a TPU by blocks of scores, forward and backward.

    Causality and a window are static masks of the kernel, whose fully masked blocks are skipped;
    segments are two arrays of numbers. On other devices the kernel is interpreted, which is slow
    and meant for tests.

    Raises:
        ValueError: there is a bias or dropout of the attention weights, or a mask or sharding that
            the kernel does not support.
    """
    queries, keys = query.shape[1], keys_values.length
    drops = dropout if dropout_rng is not None else 0.0
    if problem := _problem(keys_values, bias=bias, mask=mask, dropout=drops):
        raise ValueError(f"model.attention='splash' {problem}: set model.attention='dense'")
    own, read = mask.segments(batch=query.shape[0], queries=queries, keys=keys)
    # Padding queries attend to padding keys, since the kernel needs a key for each query.
    padding = -queries % _LANES
    rows = (query * scale, *keys_values.by_position())
    out = _on_shards(
        *(jnp.pad(x, [(0, 0), (0, padding), (0, 0), (0, 0)]) for x in rows),
        *(jnp.pad(x, [(0, 0), (0, padding)], constant_values=_PADDING) for x in (own, read)),
        causal=mask.visibility == "causal",
        window=mask.window,
    )
    return out[:, :queries]


def _leaves_to_dense(*, queries: int, keys: int, bias: object, mask: object) -> bool:
    """Return whether to use dense attention: for unequal numbers of queries and keys (caches)."""
    return queries != keys


splash_core = Core(_splash, names_output=True, knows_windows=True, leaves_to_dense=_leaves_to_dense)


def fits(query: Float[Array, "B T H K"], keys_values: KeyValues, **terms: Any) -> bool:
    """Return whether `auto` uses the kernel on a TPU: for 512 or more queries, if it is supported.

    Shorter rows have few scores, and starting a step of a kernel's grid takes about as long as a
    TPU takes to multiply 512 queries by 512 keys: an estimate, not a measurement.

    Args:
        terms: `bias`, `mask` and `dropout` (0 in evaluation).
    """
    return (
        query.shape[1] == keys_values.length >= _BLOCKS[0]
        and partitioning.device_kind() not in _WITHOUT
        and not _problem(keys_values, **terms)
    )


def _problem(
    keys_values: KeyValues, *, bias: object, mask: AttentionMask, dropout: float
) -> str | None:
    """Return what the kernel does not support about this attention, or None."""
    sizes = dict(zip(("batch", "kv_heads"), keys_values.key.shape[:2], strict=True))
    if bias is not None:
        return "adds no bias to the scores, which this network has"
    if dropout > 0.0:
        return f"has no dropout of the attention weights, which is {dropout}"
    if type(mask) is not AttentionMask or mask.prefix is not None or mask.key_slots is not None:
        return "knows causal and full masks, windows and segments, and this mask is another"
    for name, size in sizes.items():
        if size % (parts := partitioning.parts(f"activation_{name}")):
            return f"cuts {name} into {parts} equal parts, which do not divide {size}"
    return None


def _on_shards(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B T G K"],
    value: Float[Array, "B T G K"],
    own: Int[Array, "B T"],
    read: Int[Array, "B T"],
    **shape: Any,
) -> Float[Array, "B T H K"]:
    """Run the kernel on each device's rows and heads, since XLA cannot partition a kernel."""
    run: Any = functools.partial(_attend, **shape, interpret=partitioning.platform() != "tpu")
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return run(query, key, value, own, read)
    batch, heads, groups = (
        partitioning.mesh_axes(f"activation_{name}") for name in ("batch", "heads", "kv_heads")
    )
    queries, keys = (PartitionSpec(batch, None, over, None) for over in (heads, groups))
    rows = PartitionSpec(batch, None)
    return jax.shard_map(
        run, in_specs=(queries, keys, keys, rows, rows), out_specs=queries, check_vma=False
    )(query, key, value, own, read)


def _attend(
    query: Array,
    key: Array,
    value: Array,
    own: Array,
    read: Array,
    *,
    causal: bool,
    window: int | None,
    interpret: bool,
) -> Float[Array, "B T H K"]:
    length, heads = query.shape[1:3]
    block = next(size for size in _BLOCKS if length % size == 0)
    sizes = splash_attention.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    seen: Any = splash_attention.FullMask((length, length))
    if window is not None:
        seen = splash_attention.LocalMask(
            (length, length), (window - 1, 0 if causal else None), offset=0
        )
    elif causal:
        seen = splash_attention.CausalMask((length, length))
    kernel = splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([seen] * heads),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=1,
        residual_checkpoint_name=KEPT,
        interpret=interpret,
    )

    def one(query: Array, key: Array, value: Array, own: Array, read: Array) -> Array:
        heads_first = (jnp.swapaxes(x, 0, 1) for x in (query, key, value))
        segments = splash_attention.SegmentIds(own, read)
        return jnp.swapaxes(kernel(*heads_first, segment_ids=segments), 0, 1)

    return jax.vmap(one)(query, key, value, own, read).astype(query.dtype)
