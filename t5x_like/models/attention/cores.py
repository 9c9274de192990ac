"""Attention cores: softmax(scale * q k^T + bias) v under a mask, dense or fused."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from t5x_like.models.attention.cache import KeyValues
from t5x_like.models.attention.masks import AttentionMask, ComputedMask
from t5x_like.models.attention.relative_buckets import RelativeBias
from t5x_like.models.broadcast import broadcast_to
from t5x_like.models.matrix_product import local_product

# The checkpoint name of the inputs and outputs of attention, for `Compute.remat`.
KEPT = "attention"

# The score of a masked key. It is finite, so that a query without keys (padding) yields the mean of
# the values rather than NaN.
MASKED = -1e9


@dataclasses.dataclass(frozen=True)
class Core:
    """An implementation of softmax(scale * q k^T + bias) v under a mask.

    Attributes:
        compute: the attention function.
        names_output: whether it already calls `checkpoint_name(..., KEPT)` on the outputs that the
            backward pass needs, so that `remat` can save them.
        has_scores: whether attention scores can be collected with this core.
        knows_windows: whether it computes only the scores within a mask's window.
        knows_relative_bias: whether the bias may be a `RelativeBias`, computed from its table.
        leaves_to_dense: a function (queries, keys, bias, mask) -> whether dense attention runs
            instead; None for never.
    """

    compute: Callable[..., Float[Array, "B T H K"]]
    names_output: bool = False
    has_scores: bool = False
    knows_windows: bool = False
    knows_relative_bias: bool = False
    leaves_to_dense: Callable[..., bool] | None = None

    def __call__(
        self,
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
        """Return the weighted values.

        Args:
            dropout: rate at which attention weights are set to 0.
            dropout_rng: the dropout key; None for no dropout.
            dropout_broadcast: whether all queries of a head share one dropout mask.
        """
        queries, keys = query.shape[1], keys_values.length
        compute = self.compute
        dense = self.leaves_to_dense is not None and self.leaves_to_dense(
            queries=queries, keys=keys, bias=bias, mask=mask
        )
        if dense:
            compute = _dense
            if isinstance(bias, RelativeBias):
                bias = bias.dense(queries=queries, keys=keys, dtype=query.dtype)
        out = compute(
            query,
            keys_values,
            bias=bias,
            mask=mask,
            scale=scale,
            dropout=dropout,
            dropout_rng=dropout_rng,
            dropout_broadcast=dropout_broadcast,
        )
        return checkpoint_name(out, KEPT) if dense and self.names_output else out


def _dense(
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
    """Attend through the full score matrix, softmax in float32 (Vaswani et al. 2017, eq. 1).

    The H query heads share G key heads (G = H is multi-head attention, G = 1 multi-query).
    """
    scores = masked_scores(query, keys_values, bias=bias, mask=mask, scale=scale)
    return weighted_values(
        scores,
        keys_values,
        dtype=query.dtype,
        dropout=dropout,
        dropout_rng=dropout_rng,
        dropout_broadcast=dropout_broadcast,
    )


dense_core = Core(_dense, has_scores=True)


def masked_scores(
    query: Float[Array, "B T H K"],
    keys_values: KeyValues,
    *,
    bias: Float[Array, "B H T S"] | None,
    mask: AttentionMask,
    scale: float,
) -> Float[Array, "B H T S"]:
    """Return the float32 scores before the softmax, scale * q k^T + bias, or `MASKED`."""
    batch, targets, heads, width = query.shape
    groups, sources = keys_values.key.shape[1:3]
    # Scaling the query takes T*H*K multiplications; scaling the scores would take T*S*H.
    query = (query if scale == 1.0 else query * scale).reshape(
        batch, targets, groups, heads // groups, width
    )
    scores = local_product("BTGRK,BGSK->BGRTS", query, keys_values.key)
    scores = scores.reshape(batch, heads, targets, sources)
    if bias is not None:
        # The gradient of `broadcast_to` is a float32 product on a CPU: only for float32 networks.
        float32 = query.dtype == jnp.float32
        bias = bias.astype(scores.dtype)
        scores = scores + (broadcast_to(bias, scores.shape) if float32 else bias)
    allowed = mask.dense(queries=targets, keys=sources)
    return scores if allowed is None else jnp.where(allowed, scores, MASKED)


def weighted_values(
    scores: Float[Array, "B H T S"],
    keys_values: KeyValues,
    *,
    dtype: Any,
    dropout: float = 0.0,
    dropout_rng: Array | None = None,
    dropout_broadcast: bool = False,
) -> Float[Array, "B T H K"]:
    """Return the values weighted by the softmax of the scores, in `dtype`."""
    batch, heads, targets, sources = scores.shape
    groups, width = keys_values.value.shape[1], keys_values.value.shape[3]
    weights = jax.nn.softmax(scores, axis=-1).astype(dtype)
    if dropout_rng is not None and dropout > 0.0:
        shape = (batch, heads, 1 if dropout_broadcast else targets, sources)
        keep = jax.random.bernoulli(dropout_rng, 1.0 - dropout, shape)
        weights = weights * keep.astype(weights.dtype) / (1.0 - dropout)
    weights = weights.reshape(batch, groups, heads // groups, targets, sources)
    out = jnp.einsum("BGRTS,BGSK->BTGRK", weights, keys_values.value)
    return out.reshape(batch, targets, heads, width)


def drop_keys(keys_values: KeyValues, *, heads: int, rate: float, rng: Array) -> KeyValues:
    """Apply dropout with one mask for all queries of a head, as in T5, to the values.

    The weights of a dropped key are dropped for every query. The random numbers are the same as in
    `dense_core`. Keys must have as many heads as queries.
    """
    batch, _, keys, _ = keys_values.key.shape
    keep = jax.random.bernoulli(rng, 1.0 - rate, (batch, heads, 1, keys))
    value = keys_values.value * jnp.swapaxes(keep, 2, 3).astype(keys_values.value.dtype)
    return dataclasses.replace(keys_values, value=value / (1.0 - rate))


def masked_as_zero(scores: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the scores with 0 where they are masked, for TinyBERT's loss.

    Jiao et al. 2019, section 3.1, equation 7, and the authors' code.
    """
    return jnp.where(scores > MASKED / 2, scores, 0.0)


# ---- Windows: each query attends to a window, and only the scores near it are computed.


def for_window(core: Core, *, bias: Any, mask: AttentionMask) -> Any:
    """Return the core, or `banded` if the mask has a window that the core does not know."""
    # Not for a cache: its keys are not in order, and there are no more than its queries need.
    alone = bias is None and mask.key_slots is None
    if mask.window is None or core.knows_windows or not alone:
        return core
    return banded(core, window=mask.window)


def banded(core: Any, *, window: int) -> Any:
    """Make a core compute only the scores near a window, for causal self-attention.

    The slots are divided into blocks of W = `window`. The queries of a block attend to keys of
    their own and of the previous block, so `core` computes T x 2W scores instead of T x T (Child et
    al. 2019, section 4; Beltagy et al. 2020, section 3.1). The mask removes the keys outside the
    window.
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
    # Slots within a pair of blocks: the queries are in the second block.
    distance = window + jnp.arange(window)[:, None] - jnp.arange(2 * window)[None, :]
    band = (distance >= 0) & (distance < window)
    allowed = band & (reading[:, :, None] == read[:, None, :]) & (read[:, None, :] > 0)
    pairs = KeyValues.from_positions(*map(with_previous, keys_values.by_position()))
    out = core(
        own(query), pairs, bias=None, mask=ComputedMask(allowed=allowed[:, None]), **settings
    )
    return out.reshape(batch, number * window, *query.shape[2:])[:, :length]
