"""Attention through cuDNN's fused kernel, for NVIDIA GPUs."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like import partitioning
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.cores import Core, drop_keys
from t5x_like.nn.attention.masks import AttentionMask

_WIDEST = 128  # the head width that the kernel supports from Ampere on, forward and backward
_WIDEST_ON_HOPPER = 256  # from compute capability 9.0 on
_HOPPER = 9.0
_BITS = 12  # of a segment number: a row has fewer than 4,096 segments
_FEATURES = 2 * _BITS


def _cudnn(
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
    """Compute attention with cuDNN's fused kernel: an NVIDIA GPU, 16-bit types, no score matrix.

    The kernel gets the mask in the cheapest form that it supports, so that a bias [1, H, T, S] and
    its gradient are not expanded to every row:

    - causality and a causal window are settings of the kernel;
    - padding at the end of rows (`AttentionMask.padding`) is a length for each row;
    - packed rows, and padding elsewhere, are segments: `_attend_within_segments`;
    - everything else is a matrix [B, 1, T, S] that is added to the scores, or [B, H, T, S] with a
      bias: prefixes, subclasses of `AttentionMask` (ranges, branches, computed masks), a cache's
      slots and offsets, and segments if heads are wider than 104, or 232 from Hopper on.

    Dropout with one mask for all queries of a head, as in T5, is computed as dropout of the values,
    with the random numbers of `dense_core`. Dropout of single weights is rejected: the seed of
    JAX's binding is a compile-time constant, the same in each step and layer, and cuDNN's random
    numbers depend on how often the kernel ran before, so that a resumed run, or a layer recomputed
    under remat, would have different numbers.

    Raises:
        ValueError: the dtype is float32, which the kernel does not support; or there is dropout of
            single weights, or any dropout with grouped heads.
    """
    drops = dropout_rng is not None and dropout > 0.0
    if problem := _problem(query, keys_values, drops=drops, dropout_broadcast=dropout_broadcast):
        raise ValueError(f"model.attention='cudnn' {problem}")
    length = query.shape[1]
    if drops:
        assert dropout_rng is not None
        keys_values = drop_keys(keys_values, heads=query.shape[2], rate=dropout, rng=dropout_rng)
    rows = (query, *keys_values.by_position())
    bias = None if bias is None else bias.astype(query.dtype)
    if not _is_plain(mask):
        allowed = mask.dense(queries=length, keys=keys_values.length)
        return _kernel(*rows, bias=bias, mask=allowed, scale=scale)
    settings: dict[str, Any] = {"scale": scale, "is_causal": mask.visibility == "causal"}
    if mask.window is not None:  # cuDNN does not count the query's own slot
        settings["local_window_size"] = (mask.window - 1, 0)
    if mask.key_segments is None:
        return _kernel(*rows, bias=bias, **settings)
    if mask.query_segments is None and mask.padding == "at_end":
        own, read = _lengths(mask.key_segments, queries=length)
        settings |= {"query_seq_lengths": own, "key_value_seq_lengths": read}
        return _kernel(*rows, bias=bias, **settings)
    if query.shape[-1] + _FEATURES <= _widest():
        segments = mask.segments(batch=len(query), queries=length, keys=keys_values.length)
        return _within_segments(*rows, *segments, bias, **settings)
    allowed = mask.dense(queries=length, keys=keys_values.length)
    return _kernel(*rows, bias=bias, mask=allowed, scale=scale)


def _leaves_to_dense(*, queries: int, keys: int, bias: Any, mask: AttentionMask) -> bool:
    """Return whether to use dense attention.

    It is used for one query, as in decoding, and with a bias for odd lengths, for which the kernel
    has no backward pass.
    """
    del mask
    return queries == 1 or (bias is not None and (queries % 2 == 1 or keys % 2 == 1))


cudnn_core = Core(_cudnn, knows_windows=True, leaves_to_dense=_leaves_to_dense)


def fits(
    query: Float[Array, "B T H K"],
    keys_values: KeyValues,
    *,
    dropout: float,
    dropout_broadcast: bool,
) -> bool:
    """Return whether `auto` uses the kernel: on an NVIDIA GPU, if it supports this attention.

    Args:
        dropout: the rate; 0 in evaluation.
    """
    drops = {"drops": dropout > 0.0, "dropout_broadcast": dropout_broadcast}
    return partitioning.device_kind().startswith("NVIDIA") and not _problem(
        query, keys_values, **drops
    )


def _problem(
    query: Array, keys_values: KeyValues, *, drops: bool, dropout_broadcast: bool
) -> str | None:
    """Return what the kernel does not support about this attention, or None."""
    if query.dtype not in (jnp.bfloat16, jnp.float16):
        return (
            f"needs model.dtype='bfloat16', not {query.dtype}; "
            "use model.attention='dense' for float32"
        )
    if drops and not (dropout_broadcast and query.shape[2] == keys_values.key.shape[1]):
        return (
            "has dropout of the attention weights only where "
            "model.dropout_broadcast=True and heads are not grouped: set model.dropout=0.0 or "
            "model.attention='dense'"
        )
    return None


def _widest() -> int:
    """Return the widest heads that JAX's binding accepts on the GPU of this process."""
    capability = float(getattr(jax.local_devices()[0], "compute_capability", 0.0))
    return _WIDEST_ON_HOPPER if capability >= _HOPPER else _WIDEST


def _is_plain(mask: AttentionMask) -> bool:
    """Return whether the mask has only segments, causality from slot 0 on and a causal window."""
    return (
        type(mask) is AttentionMask
        and mask.prefix is mask.key_slots is None
        and (mask.visibility == "causal" or (mask.visibility == "full" and mask.window is None))
        and (mask.visibility == "full" or mask.offset is None)
    )


def _lengths(
    segments: Int[Array, "B S"], *, queries: int
) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
    """Return each row's number of queries, including padding, and of real keys, at least 1."""
    real = jnp.maximum(jnp.sum(segments > 0, axis=1, dtype=jnp.int32), 1)
    # Sharded like the rows: the kernel of a device reads the lengths of its rows.
    return tuple(
        nn.with_logical_constraint(lengths, ("activation_batch",))
        for lengths in (jnp.full_like(real, queries), real)
    )


def _attend_within_segments(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G K"],
    own: Int[Array, "B T"],
    read: Int[Array, "B S"],
    bias: Float[Array, "B H T S"] | None,
    *,
    scale: float,
    **settings: Any,
) -> Float[Array, "B T H K"]:
    """Compute attention within segments, without a mask array.

    Queries and keys get extra features that encode their segment's number: for each bit a pair of
    features whose products sum to 0 if the bits agree, and to a number far below every score if
    they do not. So the scores within a segment are exact, and the weights of other segments are 0.

    JAX's binding also supports segment offsets. But they need the number of segments at compile
    time and a Hopper GPU, use the strides of the query heads also for grouped keys (JAX 0.10.2),
    and are not tested with a bias.
    """
    width = query.shape[-1]
    shifts = jnp.arange(_BITS)
    asked, kept = ((segments[..., None] >> shifts) & 1 for segments in (own, read))
    # The product of both factors is 2^20, and each factor fits into float16.
    of_queries = jnp.concatenate([asked, 1 - asked], axis=-1) * (2.0**10 / scale)
    of_keys = jnp.concatenate([1 - kept, kept], axis=-1) * -(2.0**10)

    def beside(x: Array, features: Array) -> Array:
        shape = (*x.shape[:3], _FEATURES)
        features = jnp.broadcast_to(features[:, :, None].astype(x.dtype), shape)
        return jnp.concatenate([x, features], axis=-1)

    # Except on Hopper the kernel needs values as wide as keys, so pad them with zeros.
    wide = jnp.pad(value, [(0, 0)] * 3 + [(0, _FEATURES)])
    return _kernel(
        beside(query, of_queries), beside(key, of_keys), wide, bias=bias, scale=scale, **settings
    )[..., :width]


# `training.flops` finds the jitted function by name, and does not count the extra features.
_attend_within_segments.__name__ = f"attention_beside_{_FEATURES}_features"
_within_segments = jax.jit(
    _attend_within_segments, static_argnames=("scale", "is_causal", "local_window_size")
)


def _kernel(query: Array, key: Array, value: Array, **settings: Any) -> Float[Array, "B T H K"]:
    return jax.nn.dot_product_attention(query, key, value, implementation="cudnn", **settings)
