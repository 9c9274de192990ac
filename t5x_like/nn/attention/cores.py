"""Attention cores in plain JAX: softmax(scale * q k^T + bias) v under a mask.

The dense core computes all scores at once. The blockwise core, for CPUs, takes one head at a time,
and blocks of queries if attention is causal.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float

from t5x_like import partitioning
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.positions import AttentionMask, ComputedMask, RelativeBias
from t5x_like.nn.matrix_product import float32_sums, local_product


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def broadcast_to(x: Float[Array, "..."], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Broadcast an array with the rank of `shape`; the gradient is computed by `sum_to`."""
    return jnp.broadcast_to(x, shape)


def _broadcast_forward(x, shape):
    return jnp.broadcast_to(x, shape), x.shape


def _broadcast_backward(shape, input_shape, gradient):
    del shape
    return (sum_to(gradient, input_shape),)


broadcast_to.defvjp(_broadcast_forward, _broadcast_backward)


def sum_to(x: Float[Array, "..."], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Sum over the axes of `x` that have size 1 in `shape`.

    On a CPU the sum over the first axis is a product with ones, since XLA's sum over the first axis
    of an array of scores takes ten times as long.
    """
    axes = [n for n, (size, wanted) in enumerate(zip(x.shape, shape, strict=True)) if size > wanted]
    if axes[:1] == [0] and partitioning.platform() == "cpu":
        x = jnp.tensordot(jnp.ones((1, len(x)), x.dtype), x, 1)
        axes = axes[1:]
    return jnp.sum(x, axis=axes, keepdims=True) if axes else x


# The checkpoint names of the inputs and the output of attention, for `Compute.remat`.
QUERY, KEY, VALUE, CONTEXT = "query", "key", "value", "context"

# The score of a masked key. It is finite, so that a query without keys (padding) yields the mean of
# the values rather than NaN.
MASKED = -1e9


@dataclasses.dataclass(frozen=True)
class Core:
    """An implementation of softmax(scale * q k^T + bias) v under a mask.

    Attributes:
        compute: the attention function.
        names_output: whether it already calls `checkpoint_name(..., CONTEXT)` on the outputs that
            the backward pass needs, so that `remat` can save them.
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
        return checkpoint_name(out, CONTEXT) if dense and self.names_output else out


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
    keep = None
    if dropout_rng is not None and dropout > 0.0:
        shape = (batch, heads, 1 if dropout_broadcast else targets, sources)
        keep = jax.random.bernoulli(dropout_rng, 1.0 - dropout, shape)
        keep = keep.reshape(batch, groups, heads // groups, *keep.shape[2:])
    scores = scores.reshape(batch, groups, heads // groups, targets, sources)
    out = _softmax_product(scores, keys_values.value, keep, dropout, dtype)
    return out.reshape(batch, targets, heads, width)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _softmax_product(
    scores: Float[Array, "B G R T S"],
    value: Float[Array, "B G S K"],
    keep: Bool[Array, "B G R #T S"] | None,
    rate: float,
    dtype: Any,
) -> Float[Array, "B T G R K"]:
    """Return dropout(softmax(scores)) v.

    For the backward pass it keeps the weights in `dtype` and a Boolean mask: 3 bytes a score in
    bfloat16. Autodiff would keep 8: the softmax in float32, the mask in bfloat16, and the weights
    that dropout left.
    """
    return _softmax_product_forward(scores, value, keep, rate, dtype)[0]


def _softmax_product_forward(scores, value, keep, rate, dtype):
    weights = jax.nn.softmax(scores, axis=-1).astype(dtype)
    out = _product(_drop(weights, keep, rate), value)
    return out, (weights, value, keep, out)


def _softmax_product_backward(rate, dtype, kept, gradient):
    del dtype
    weights, value, keep, out = kept
    left = _drop(weights, keep, rate)
    [of_value] = jax.linear_transpose(lambda x: _product(left, x), value)(gradient)
    [of_left] = jax.linear_transpose(lambda x: _product(x, value), left)(gradient)
    # The softmax's gradient subtracts the sum over the keys of weights and their gradients, which
    # is the product of output and gradient: K terms instead of S (Dao et al. 2022, appendix B.2).
    mean = jnp.sum(out.astype(jnp.float32) * gradient, axis=-1)
    mean = jnp.moveaxis(mean, 1, -1)  # [B, G, R, T]
    of_scores = weights.astype(jnp.float32) * (_drop(of_left, keep, rate) - mean[..., None])
    return of_scores, of_value, None


_softmax_product.defvjp(_softmax_product_forward, _softmax_product_backward)


def _product(
    weights: Float[Array, "B G R T S"], value: Float[Array, "B G S K"]
) -> Float[Array, "B T G R K"]:
    return jnp.einsum("BGRTS,BGSK->BTGRK", weights, value)


def _drop(x: Float[Array, "..."], keep: Bool[Array, "..."] | None, rate: float) -> Any:
    return x if keep is None else jnp.where(keep, x / (1.0 - rate), 0)


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

    def in_blocks(x: Float[Array, "B T ..."]) -> Float[Array, "b W ..."]:
        x = jnp.pad(x, [(0, 0), (0, end)] + [(0, 0)] * (x.ndim - 2))
        return x.reshape(batch * number, window, *x.shape[2:])

    def with_previous(x: Float[Array, "B T ..."]) -> Float[Array, "b S ..."]:
        x = jnp.pad(x, [(0, 0), (window, end)] + [(0, 0)] * (x.ndim - 2))
        x = x.reshape(batch, number + 1, window, *x.shape[2:])
        pairs = jnp.concatenate([x[:, :-1], x[:, 1:]], axis=2)
        return pairs.reshape(batch * number, 2 * window, *x.shape[3:])

    of_queries, of_keys = mask.segments(batch=batch, queries=length, keys=length)
    query_segments, key_segments = in_blocks(of_queries), with_previous(of_keys)
    # Slots within a pair of blocks: the queries are in the second block.
    distance = window + jnp.arange(window)[:, None] - jnp.arange(2 * window)[None, :]
    band = (distance >= 0) & (distance < window)
    allowed = (
        band
        & (query_segments[:, :, None] == key_segments[:, None, :])
        & (key_segments[:, None, :] > 0)
    )
    pairs = KeyValues.from_positions(*map(with_previous, keys_values.by_position()))
    out = core(
        in_blocks(query), pairs, bias=None, mask=ComputedMask(allowed=allowed[:, None]), **settings
    )
    return out.reshape(batch, number * window, *query.shape[2:])[:, :length]


_QUERIES = 128  # per block


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
    """Compute attention for one head per device at a time; recompute scores in the backward pass.

    The scores of one head fit into a CPU's caches; the scores of all heads do not. Under a causal
    mask a block of 128 queries computes only the scores of the keys up to its end, which saves
    almost half.

    The backward pass follows Dao et al. 2022 (FlashAttention, appendix B.2): the largest score and
    the sum of exponentials of each query are saved, so it needs no maximum and no sum over keys.

    Dropout with one mask for all queries of a head, as in T5, is computed as dropout of the values:
    the weights of a dropped key are dropped for every query. With a separate dropout mask for each
    query, or dropout with grouped heads, attention is dense.
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
    causal = _is_causal(query, keys_values, mask)
    terms = {"bias": bias, "allowed": allowed}
    return _by_head(query, keys_values, terms, scale=scale, causal=causal)


def _leaves_to_dense(*, queries: int, keys: int, bias: Any, mask: AttentionMask) -> bool:
    """Return whether to use dense attention: for one block of queries the scores are few."""
    del keys, bias, mask
    return queries <= _QUERIES


blockwise_core = Core(_blockwise, has_scores=True, leaves_to_dense=_leaves_to_dense)


def _is_causal(query: Array, keys_values: KeyValues, mask: AttentionMask) -> bool:
    """Return whether the mask is causal, with query t and key t both in slot t."""
    return (
        type(mask) is AttentionMask
        and mask.visibility == "causal"
        and mask.key_slots is None
        and mask.offset is None
        and query.shape[1] == keys_values.length
    )


def _by_head(
    query: Float[Array, "B T H K"],
    keys_values: KeyValues,
    terms: Mapping[str, Array | None],
    *,
    scale: float,
    causal: bool,
) -> Float[Array, "B T H K"]:
    """Compute attention for one key head per device at a time.

    Args:
        terms: `bias` and `allowed`, [B, H, T, S] or None; their axes may be 1.
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

    def attend_heads(step: Any) -> Float[Array, "B T h K"]:
        query, keys_values, terms = step
        return _attend(scale, causal, _Operands(query, keys_values, **same | terms))

    steps = (apart(query, 2), jax.tree.map(lambda x: apart(x, 1), keys_values), by_head)
    out = jnp.moveaxis(jax.lax.map(attend_heads, steps), 0, 2)
    return out.reshape(*query.shape[:3], -1)


class _Operands(NamedTuple):
    """The inputs of attention; axes of `bias` and of `allowed` may be 1."""

    query: Float[Array, "B T H K"]
    keys_values: KeyValues
    bias: Float[Array, "B H T S"] | None
    allowed: Bool[Array, "B H T S"] | None

    def scores(self, scale: float) -> Float[Array, "B H T S"]:
        mask = AttentionMask() if self.allowed is None else ComputedMask(allowed=self.allowed)
        return masked_scores(self.query, self.keys_values, bias=self.bias, mask=mask, scale=scale)

    def block(self, queries: slice, keys: slice) -> "_Operands":
        """Return the operands of some queries and some keys."""

        def cut(x: Array | None) -> Array | None:
            if x is None:
                return None
            x = x if x.shape[2] == 1 else x[:, :, queries]
            return x if x.shape[3] == 1 else x[..., keys]

        return _Operands(
            self.query[:, queries],
            jax.tree.map(lambda x: x[:, :, keys], self.keys_values),
            cut(self.bias),
            cut(self.allowed),
        )


class _Attended(NamedTuple):
    """The output, and the terms to recompute the weights, exp(scores - largest) / total."""

    output: Float[Array, "B T H K"]
    largest: Float[Array, "B H T"]
    total: Float[Array, "B H T"]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(scale: float, causal: bool, operands: _Operands) -> Float[Array, "B T H K"]:
    return _forward(scale, causal, operands)[0]


def _forward(scale, causal, operands):
    attended = (_causal_blocks if causal else _weighted)(operands, scale=scale)
    return attended.output, (operands, attended)


def _backward(scale, causal, residuals, gradient):
    operands, attended = residuals
    if causal:
        return (_gradients_of_blocks(operands, attended, gradient, scale=scale),)
    return (_gradients(operands, attended, gradient, scale=scale),)


_attend.defvjp(_forward, _backward)


def _weighted(operands: _Operands, *, scale: float) -> _Attended:
    """Compute attention of all queries to all keys."""
    scores = operands.scores(scale)
    largest = jnp.max(scores, axis=-1)
    weights = jnp.exp(scores - largest[..., None])
    total = jnp.sum(weights, axis=-1)
    value = operands.keys_values.value
    out = float32_sums("BGRTS,BGSK->BGRTK", _grouped(weights, value), value)
    out = _positions_first(out) / jnp.swapaxes(total, 1, 2)[..., None]
    return _Attended(out.astype(operands.query.dtype), largest, total)


def _gradients(
    operands: _Operands, attended: _Attended, gradient: Float[Array, "B T H K"], *, scale: float
) -> _Operands:
    """Return the gradients of the operands, from the gradient of the output."""
    query, key, value = operands.query, operands.keys_values.key, operands.keys_values.value
    # Divide the gradient by the sums of exponentials, so that the weights need not be normalized.
    gradient = gradient / jnp.swapaxes(attended.total, 1, 2)[..., None]
    inner = jnp.swapaxes(jnp.sum(gradient * attended.output, axis=-1), 1, 2)
    gradient = _heads_first(gradient, value)

    scores = operands.scores(scale)
    weights = jnp.exp(scores - attended.largest[..., None])
    by_value = float32_sums("BGRTS,BGRTK->BGSK", _grouped(weights, value), gradient)
    by_weights = float32_sums("BGRTK,BGSK->BGRTS", gradient, value).reshape(scores.shape)
    by_scores = weights * (by_weights - inner[..., None])
    if operands.allowed is not None:
        by_scores = jnp.where(operands.allowed, by_scores, 0.0)
    by_bias = None
    if operands.bias is not None:
        by_bias = sum_to(by_scores, operands.bias.shape).astype(operands.bias.dtype)

    by_scores = _grouped(by_scores, key)
    by_query = _positions_first(float32_sums("BGRTS,BGSK->BGRTK", by_scores, key)) * scale
    by_key = float32_sums("BGRTS,BGRTK->BGSK", by_scores, _heads_first(query * scale, key))
    by_keys_values = KeyValues(by_key.astype(key.dtype), by_value.astype(value.dtype))
    return _Operands(by_query.astype(query.dtype), by_keys_values, by_bias, None)


def _heads_first(
    x: Float[Array, "B T H K"], keys: Float[Array, "B G S K"]
) -> Float[Array, "B G R T K"]:
    """Group arrays of queries by the G key heads, heads first, in the dtype of the keys.

    Products of scores and keys then give arrays in this layout, without transposing the scores.
    """
    batch, length, _, width = x.shape
    x = x.reshape(batch, length, keys.shape[1], -1, width)
    return jnp.moveaxis(x, 1, 3).astype(keys.dtype)


def _positions_first(x: Float[Array, "B G R T K"]) -> Float[Array, "B T H K"]:
    x = jnp.moveaxis(x, 3, 1)
    return x.reshape(*x.shape[:2], -1, x.shape[4])


def _grouped(
    scores: Float[Array, "B H T S"], keys: Float[Array, "B G S K"]
) -> Float[Array, "B G R T S"]:
    """Group scores by the G key heads, in the dtype of the keys."""
    batch, _, *pairs = scores.shape
    return scores.reshape(batch, keys.shape[1], -1, *pairs).astype(keys.dtype)


def _blocks(length: int) -> Iterator[tuple[slice, slice]]:
    """Yield the queries of each block, and the keys up to its end."""
    for begin in range(0, length, _QUERIES):
        end = min(begin + _QUERIES, length)
        yield slice(begin, end), slice(end)


def _attend_to_blocks(operands: _Operands, *, scale: float) -> _Attended:
    """Compute attention of each block of queries to the keys up to its end."""
    blocks = _blocks(operands.query.shape[1])
    parts = [_weighted(operands.block(*block), scale=scale) for block in blocks]
    output, *sums = zip(*parts, strict=True)
    return _Attended(
        jnp.concatenate(output, axis=1), *(jnp.concatenate(part, axis=2) for part in sums)
    )


# `training.flops` finds the jitted function by name, and adds the pairs that it skips.
_attend_to_blocks.__name__ = f"causal_blocks_of_{_QUERIES}"
_causal_blocks = jax.jit(_attend_to_blocks, static_argnames="scale")


def _gradients_of_blocks(
    operands: _Operands, attended: _Attended, gradient: Float[Array, "B T H K"], *, scale: float
) -> _Operands:
    """Return the gradients of the operands of `_attend_to_blocks`."""
    parts, length = [], operands.query.shape[1]
    for queries, keys in _blocks(length):
        of_block = _Attended(
            attended.output[:, queries],
            attended.largest[..., queries],
            attended.total[..., queries],
        )
        block = operands.block(queries, keys)
        parts.append(_gradients(block, of_block, gradient[:, queries], scale=scale))

    def padded(x: Array, axis: int) -> Array:
        pads = [(0, 0)] * x.ndim
        pads[axis] = (0, length - x.shape[axis] if x.shape[axis] > 1 else 0)
        return jnp.pad(x, pads)

    by_keys_values = jax.tree.map(
        lambda *xs: sum(padded(x, 2) for x in xs), *(part.keys_values for part in parts)
    )
    by_bias = None
    if operands.bias is not None:
        rows = [padded(part.bias, 3) for part in parts if part.bias is not None]
        shared = operands.bias.shape[2] == 1
        by_bias = functools.reduce(jnp.add, rows) if shared else jnp.concatenate(rows, axis=2)
    by_query = jnp.concatenate([part.query for part in parts], axis=1)
    return _Operands(by_query, by_keys_values, by_bias, None)
