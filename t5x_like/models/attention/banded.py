"""Banded (local) attention: each query attends to a window, and only those scores are computed."""

import functools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.models.attention.cache import KeyValues
from t5x_like.models.attention.cores import Core
from t5x_like.models.attention.masks import AttentionMask, ComputedMask


def for_window(core: Core, *, bias: Any, mask: AttentionMask) -> Any:
    """The core itself, or within bands where the mask has a window that the core does not know."""
    # A cache's keys are in no order, and no more than the few queries need.
    alone = bias is None and mask.key_slots is None
    if mask.window is None or core.knows_windows or not alone:
        return core
    return banded(core, window=mask.window)


def banded(core: Any, *, window: int) -> Any:
    """Make a core compute only the scores within a window, for self-attention under a causal mask.

    The slots are cut into blocks of W = `window`. The queries of a block attend to keys of their
    own and of the previous block, so `core` computes T x 2W scores in place of T x T (Child et al.
    2019, section 4; Beltagy et al. 2020, section 3.1). The mask cuts off the edges of the band.
    """
    return functools.partial(_banded, core=core, window=window)


def _banded(
    query: Float[Array, "B T H K"],
    keys_values: KeyValues,
    *,
    bias: None,
    mask: AttentionMask,
    core: Any,
    window: int,
    **settings: Any,
) -> Float[Array, "B T H K"]:
    batch, length = query.shape[:2]
    causal = type(mask) is AttentionMask and mask.visibility == "causal" and mask.prefix is None
    if not causal or length <= 2 * window:  # blocks would save nothing
        return core(query, keys_values, bias=bias, mask=mask, **settings)
    number = -(-length // window)
    end = number * window - length

    def own(x: Float[Array, "B T ..."]) -> Float[Array, "b W ..."]:
        x = jnp.pad(x, [(0, 0), (0, end)] + [(0, 0)] * (x.ndim - 2))
        return x.reshape(batch * number, window, *x.shape[2:])

    def with_previous(x: Float[Array, "B T ..."]) -> Float[Array, "b S ..."]:
        x = jnp.pad(x, [(0, 0), (window, end)] + [(0, 0)] * (x.ndim - 2))
        x = x.reshape(batch, number + 1, window, *x.shape[2:])
        pairs = jnp.concatenate([x[:, :-1], x[:, 1:]], axis=2)
        return pairs.reshape(batch * number, 2 * window, *x.shape[3:])

    of_queries, of_keys = mask.segments(batch=batch, queries=length, keys=length)
    reading, read = own(of_queries), with_previous(of_keys)
    # Slots within a pair of blocks: the queries are those of the second.
    distance = window + jnp.arange(window)[:, None] - jnp.arange(2 * window)[None, :]
    band = (distance >= 0) & (distance < window)
    allowed = band & (reading[:, :, None] == read[:, None, :]) & (read[:, None, :] > 0)
    pairs = KeyValues.from_positions(*map(with_previous, keys_values.by_position()))
    out = core(
        own(query), pairs, bias=None, mask=ComputedMask(allowed=allowed[:, None]), **settings
    )
    return out.reshape(batch, number * window, *query.shape[2:])[:, :length]
