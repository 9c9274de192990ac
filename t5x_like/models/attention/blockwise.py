"""Attention one head after the other, in blocks of queries where it is causal, for CPUs."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.models.attention.cache import KeyValues
from t5x_like.models.attention.cores import Core, dense_core, drop_keys
from t5x_like.models.attention.masks import AttentionMask, ComputedMask

_QUERIES = 128  # of a block


def _blockwise(
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
    """Attention with the scores of one head of each device, computed anew to differentiate.

    They stay in a CPU's caches, where those of all heads do not. Under a causal mask a block of 128
    queries has the scores of the keys up to its end alone: almost half are never computed.

    Dropout with one mask for all queries of a head, T5's, is dropout of the values: the weights of
    a dropped key are dropped for every query. With a mask for each query attention is dense.
    """
    settings: dict[str, Any] = {"bias": bias, "mask": mask, "scale": scale}
    drops = dropout_rng is not None and dropout > 0.0
    grouped = query.shape[2] != keys_values.key.shape[1]
    if drops and (grouped or not dropout_broadcast):
        return dense_core(
            query,
            keys_values,
            **settings,
            dropout=dropout,
            dropout_rng=dropout_rng,
            dropout_broadcast=dropout_broadcast,
        )
    if drops:
        assert dropout_rng is not None
        heads = query.shape[2]
        keys_values = drop_keys(keys_values, heads=heads, rate=dropout, rng=dropout_rng)
    allowed = mask.dense(queries=query.shape[1], keys=keys_values.length)
    attend = _causal_blocks if _is_causal(query, keys_values, mask) else _dense
    return _by_head(attend, query, keys_values, {"bias": bias, "allowed": allowed}, scale=scale)


def _leaves_to_dense(*, queries: int, keys: int, bias: Any, mask: AttentionMask) -> bool:
    """One block of queries or fewer: the scores are few."""
    del keys, bias, mask
    return queries <= _QUERIES


blockwise_core = Core(_blockwise, has_scores=True, leaves_to_dense=_leaves_to_dense)


def _by_device(query: Float[Array, "B T H K"], *rest: Any, **settings: Any) -> Array:
    on_cpu = partitioning.platform() == "cpu" and query.dtype == jnp.float32
    return (blockwise_core if on_cpu else dense_core)(query, *rest, **settings)


# `blockwise_core` for float32 on a CPU, where it is faster, and `dense_core` elsewhere. Which it is
# depends on the devices that a program is traced for.
unfused_core = Core(_by_device, has_scores=True)


def _is_causal(query: Array, keys_values: KeyValues, mask: AttentionMask) -> bool:
    """Whether no query attends to a key of a later slot, where query t and key t are in slot t."""
    return (
        type(mask) is AttentionMask
        and mask.visibility == "causal"
        and mask.key_slots is None
        and isinstance(mask.offset, int)
        and mask.offset == 0
        and query.shape[1] == keys_values.length
    )


def _by_head(
    attend: Callable[..., Array],
    query: Float[Array, "B T H K"],
    keys_values: KeyValues,
    terms: Mapping[str, Array | None],
    *,
    scale: float,
) -> Float[Array, "B T H K"]:
    """Attention for one head of keys of each device after the other.

    Args:
        terms: arrays [B, H, T, S], of which an axis may be 1.
    """
    groups = keys_values.key.shape[1]
    at_once = partitioning.parts("activation_kv_heads")
    at_once = at_once if groups % at_once == 0 else groups

    def apart(x: Array, axis: int) -> Array:
        heads = x.shape[axis] // groups * at_once
        x = x.reshape(*x.shape[:axis], -1, heads, *x.shape[axis + 1 :])
        return jnp.moveaxis(x, axis, 0)

    same = {name: x for name, x in terms.items() if x is None or x.shape[1] == 1}
    by_head = {name: apart(x, 1) for name, x in terms.items() if x is not None and name not in same}

    def one(step: Any) -> Float[Array, "B T h K"]:
        query, keys_values, terms = step
        return attend(query, keys_values, same | terms, scale=scale)

    steps = (apart(query, 2), jax.tree.map(lambda x: apart(x, 1), keys_values), by_head)
    out = jnp.moveaxis(jax.lax.map(jax.checkpoint(one), steps), 0, 2)
    return out.reshape(*query.shape[:3], -1)


def _dense(
    query: Float[Array, "B T H K"],
    keys_values: KeyValues,
    terms: Mapping[str, Array | None],
    *,
    scale: float,
) -> Float[Array, "B T H K"]:
    allowed = terms["allowed"]
    mask = AttentionMask() if allowed is None else ComputedMask(allowed=allowed)
    return dense_core(query, keys_values, bias=terms["bias"], mask=mask, scale=scale)


def _attend_to_blocks(
    query: Float[Array, "B T H K"],
    keys_values: KeyValues,
    terms: Mapping[str, Array | None],
    *,
    scale: float,
) -> Float[Array, "B T H K"]:
    """Attention of blocks of queries to the keys up to the end of each."""
    outs = []
    for begin in range(0, query.shape[1], _QUERIES):
        end = min(begin + _QUERIES, query.shape[1])

        def cut(x: Array | None, begin: int = begin, end: int = end) -> Array | None:
            if x is None:
                return None
            x = x if x.shape[2] == 1 else x[:, :, begin:end]
            return x if x.shape[3] == 1 else x[..., :end]

        before = jax.tree.map(lambda x, end=end: x[:, :, :end], keys_values)
        cuts = {name: cut(x) for name, x in terms.items()}
        outs.append(_dense(query[:, begin:end], before, cuts, scale=scale))
    return jnp.concatenate(outs, axis=1)


# `training.flops` knows the program by its name, and counts the pairs that it leaves out.
_attend_to_blocks.__name__ = f"causal_blocks_of_{_QUERIES}"
_causal_blocks = jax.jit(_attend_to_blocks, static_argnames="scale")
