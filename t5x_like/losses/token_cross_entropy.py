"""The cross-entropy of tokens, in few passes over logits of a large vocabulary.

The reductions of logits that a softmax loss needs can be computed over tiles of the vocabulary.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, PyTree

from t5x_like import partitioning
from t5x_like.losses.sums import LossSums
from t5x_like.nn.embeddings import VocabularyProduct, kernel_gradient
from t5x_like.nn.matrix_product import float32_sums

TILE = 4096  # vocabulary columns per tile and device
LARGE = 2**30  # bytes of float32 logits per device, above which they are computed in tiles


class Reduced(NamedTuple):
    """The logits of each token, reduced over the vocabulary, in float32.

    Attributes:
        log_z: log sum_v exp(x_v).
        target: the logit of the target; undefined if the target is not in the vocabulary.
        total: sum_v x_v.
        correct: 1 if the target is the argmax; ties go to the lowest index.
    """

    log_z: Float[Array, "B L"]
    target: Float[Array, "B L"]
    total: Float[Array, "B L"]
    correct: Float[Array, "B L"]


def is_large(logits: VocabularyProduct) -> bool:
    """Return whether the float32 logits of one device would take more than LARGE bytes.

    Tiles need one more matrix product than whole logits, at most a third of the head's FLOPs, and
    save 6 bytes per logit, which pays only for many logits.
    """
    parts = partitioning.parts("activation_batch") * partitioning.parts("activation_vocab")
    return 4 * math.prod(logits.shape) / parts > LARGE


def reduce_in_tiles(
    logits: VocabularyProduct, targets: Int[Array, "B L"], *, tile: int = TILE
) -> Reduced:
    """Reduce logits, materializing only one tile at a time, forward and backward.

    The forward pass keeps a running maximum and a running sum of exponentials (Milakov &
    Gimelshein 2018); the backward pass recomputes each tile. Tiles split the vocabulary rather than
    the tokens, so each part of the kernel's gradient is computed once, and data-parallel devices
    reduce no more bytes than without tiles.

    Args:
        tile: the largest number of columns of a tile, per device if the vocabulary is sharded.
    """
    axis, (*_, vocabulary) = logits.vocabulary_axis, logits.shape
    parts = partitioning.parts("activation_vocab")
    parts = parts if vocabulary % parts == 0 else 1
    shape = list(logits.kernel.shape)
    shape[axis : axis + 1] = [parts, vocabulary // parts]
    bias = logits.bias
    return _reduce_tiles(
        _Tiles(axis, tile),
        logits.hidden,
        logits.kernel.reshape(shape),
        None if bias is None else bias.reshape(parts, -1),
        targets,
    )


class _Tiles(NamedTuple):
    """How to tile a kernel [M, C, D] (axis 0) or [D, M, C] (axis 1) along C; M is sharded."""

    axis: int
    tile: int

    @property
    def kernel(self) -> str:
        return "DMC" if self.axis else "MCD"

    def slice(self, kernel: Array, start: Any, size: int, *, dtype: Any) -> Any:
        """Return columns of the kernel, cast to `dtype` before devices gather them along D."""
        part = jax.lax.dynamic_slice_in_dim(kernel, start, size, self.axis + 1).astype(dtype)
        return partitioning.constrain(part, self.names("activation_embed"))

    def write(self, kernel: Array, part: Array, start: Any) -> Any:
        part = partitioning.constrain(part, self.names("embed"))
        return jax.lax.dynamic_update_slice_in_dim(kernel, part, start, self.axis + 1)

    def names(self, embed: str) -> tuple[str | None, ...]:
        """Return the logical axes of the kernel, with `embed` as the axis of D."""
        return (embed, "vocab", None) if self.axis else ("vocab", None, embed)

    def over(self, step: Any, carry: PyTree, columns: int) -> PyTree:
        """Run `step(carry, start, size) -> carry` over all tiles; the last may be smaller."""
        full, rest = divmod(columns, self.tile)
        if full:
            carry, _ = jax.lax.scan(
                lambda carry, n: (step(carry, n * self.tile, self.tile), None),
                carry,
                jnp.arange(full),
            )
        return step(carry, full * self.tile, rest) if rest else carry


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _reduce_tiles(
    tiles: _Tiles,
    hidden: Float[Array, "B L D"],
    kernel: Array,
    bias: Float[Array, "M C"] | None,
    targets: Int[Array, "B L"],
) -> Reduced:
    parts, columns = kernel.shape[tiles.axis : tiles.axis + 2]
    each = (*targets.shape, parts)  # reduced per part of the vocabulary; combined at the end
    zeros = jnp.zeros(each, jnp.float32)
    none = jnp.full(each, -jnp.inf, jnp.float32), jnp.full(each, parts * columns, jnp.int32)

    def step(carry, start, size):
        (highest, best), exponentials, target, total = carry
        x = _logits(tiles, hidden, kernel, bias, start, size)
        index = _index(parts, columns, start, size)
        top = jnp.max(x, axis=-1)
        first = jnp.min(jnp.where(x == top[..., None], index, parts * columns), axis=-1)
        best = jnp.where(top > highest, first, best)
        higher = jnp.maximum(highest, top)
        exponentials *= jnp.exp(highest - higher)
        exponentials += jnp.sum(jnp.exp(x - higher[..., None]), axis=-1)
        target_logits = jnp.where(index == targets[..., None, None], x, 0)
        return (
            (higher, best),
            exponentials,
            target + jnp.sum(target_logits, axis=-1),
            total + jnp.sum(x, axis=-1),
        )

    carry = tiles.over(step, (none, zeros, zeros, zeros), columns)
    (highest, best), exponentials, target, total = carry
    top = jnp.max(highest, axis=-1, keepdims=True)
    best = jnp.min(jnp.where(highest == top, best, parts * columns), axis=-1)
    return Reduced(
        log_z=top[..., 0] + jnp.log(jnp.sum(exponentials * jnp.exp(highest - top), axis=-1)),
        target=jnp.sum(target, axis=-1),
        total=jnp.sum(total, axis=-1),
        correct=(best == targets).astype(jnp.float32),
    )


def _logits(tiles, hidden, kernel, bias, start, size) -> Any:
    """Return the float32 logits [B, L, M, size] of a tile."""
    part = tiles.slice(kernel, start, size, dtype=hidden.dtype)
    x = float32_sums(f"BLD,{tiles.kernel}->BLMC", hidden, part)
    if bias is not None:
        x += jax.lax.dynamic_slice_in_dim(bias, start, size, 1)
    axes = ("activation_batch", "activation_length", "activation_vocab", None)
    return partitioning.constrain(x, axes)


def _index(parts: int, columns: int, start: Any, size: int) -> Int[Array, "M C"]:
    """Return the token ids of the columns of a tile."""
    return columns * jnp.arange(parts)[:, None] + start + jnp.arange(size)


def _forward(tiles, hidden, kernel, bias, targets):
    reduced = _reduce_tiles(tiles, hidden, kernel, bias, targets)
    return reduced, (hidden, kernel, bias, targets, reduced.log_z)


def _backward(tiles, residuals, cotangents):
    hidden, kernel, bias, targets, log_z = residuals
    by_log_z, by_target, by_total, _ = (x[..., None, None] for x in cotangents)
    parts, columns = kernel.shape[tiles.axis : tiles.axis + 2]

    def step(carry, start, size):
        by_hidden, by_kernel, by_bias = carry
        x = _logits(tiles, hidden, kernel, bias, start, size)
        gradient = by_log_z * jnp.exp(x - log_z[..., None, None]) + by_total
        is_target = _index(parts, columns, start, size) == targets[..., None, None]
        gradient += jnp.where(is_target, by_target, 0.0)
        if by_bias is not None:
            part = jnp.sum(gradient, axis=(0, 1)).astype(by_bias.dtype)
            by_bias = jax.lax.dynamic_update_slice_in_dim(by_bias, part, start, 1)
        gradient = gradient.astype(hidden.dtype)
        part = tiles.slice(kernel, start, size, dtype=hidden.dtype)
        # Sum over M only once, after all tiles: it is a reduction over devices.
        by_hidden += float32_sums(f"BLMC,{tiles.kernel}->BLMD", gradient, part)
        part = kernel_gradient(
            f"ND,NMC->{tiles.kernel}",
            hidden,
            gradient,
            vocabulary=("activation_vocab", None),
            axes=tiles.names("embed"),
        )
        return by_hidden, tiles.write(by_kernel, part.astype(kernel.dtype), start), by_bias

    rows = jnp.zeros((*targets.shape, parts, hidden.shape[-1]), jnp.float32)
    axes = ("activation_batch", "activation_length", "activation_vocab", None)
    carry = (
        partitioning.constrain(rows, axes),
        jnp.zeros_like(kernel),
        None if bias is None else jnp.zeros_like(bias),
    )
    by_hidden, by_kernel, by_bias = tiles.over(step, carry, columns)
    return jnp.sum(by_hidden, axis=2).astype(hidden.dtype), by_kernel, by_bias, None


_reduce_tiles.defvjp(_forward, _backward)


def cross_entropy(
    logits: Float[Array, "*batch V"] | VocabularyProduct,
    targets: Int[Array, "*batch"],
    weights: Num[Array, "*batch"],
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
) -> LossSums:
    """Sum the softmax cross-entropy of every token, times its weight.

    With x the logits of a token, y its target, log Z = log sum_v exp(x_v), s the label smoothing,
    and q the smoothed target distribution (q_y = 1 - s, and q_v = s / (V - 1) for v != y), a token
    of weight 1 costs, in nats,

        sum_v q_v log(q_v) - sum_v q_v (x_v - log Z)  +  z_loss * (log Z)^2.

    With label smoothing (Vaswani et al. 2017, section 5.4) the loss is thus the divergence of the
    prediction from q, whose minimum is 0 for every s. The z-loss keeps log Z near 0 (Chowdhery et
    al. 2022, PaLM, section 5; T5 uses 1e-4). The arithmetic is float32 for logits of any dtype;
    the gradient has the dtype of the logits.

    Args:
        logits: an array, or the product that computes it. If the array would be large, the loss is
            computed in tiles (see `losses.token_cross_entropy`), with the same result up to float32
            rounding.

    Returns:
        The sum of the losses, the sum of the weights, and the metrics as (sum, weight):
        `cross_entropy`, -log p(y) without smoothing and z-loss, so that its exponential is the
        perplexity; `z_loss`, the z-loss term of the loss; `accuracy`, 1 if y is the argmax.
        A token with a nonzero weight and a target outside [0, V) makes the loss NaN, so that a
        vocabulary mismatch is noticed.

    Raises:
        ValueError: shapes do not fit, z_loss is negative, or label_smoothing is not in [0, 1).
    """
    _check(logits, targets, weights, z_loss=z_loss, label_smoothing=label_smoothing)
    losses = _per_token(logits, targets, z_loss=z_loss, label_smoothing=label_smoothing)
    weights = weights.astype(jnp.float32)
    weight_sum = jnp.sum(weights)
    # Select, since multiplying by 0 would keep the NaN of a padding position's target in the sum.
    sums = {
        name: jnp.sum(jnp.where(weights == 0, 0.0, value * weights))
        for name, value in losses.items()
    }
    loss_sum = sums.pop("loss")
    metrics = {name: (jax.lax.stop_gradient(value), weight_sum) for name, value in sums.items()}
    return loss_sum, weight_sum, metrics


def log_probs(
    logits: Float[Array, "*batch V"] | VocabularyProduct, targets: Int[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """Return the log-probability of each target in nats, float32.

    Args:
        logits: see `cross_entropy`.
    """
    log_z, target_logit, *_ = _reduce(logits, targets)
    return target_logit - log_z


def _per_token(
    logits: Float[Array, "*batch V"] | VocabularyProduct,
    targets: Int[Array, "*batch"],
    *,
    z_loss: float,
    label_smoothing: float,
) -> dict[str, Float[Array, "*batch"]]:
    """Compute the loss and the metrics of each token, unweighted."""
    vocabulary = logits.shape[-1]
    log_z, target_logit, logit_sum, correct = _reduce(logits, targets)
    # A target outside the vocabulary has no logit: NaN makes every sum NaN in which it has weight.
    known = (targets >= 0) & (targets < vocabulary)
    target_logit = jnp.where(known, target_logit, jnp.nan)
    z_penalty = z_loss * jnp.square(log_z)
    loss = log_z - target_logit + z_penalty
    if label_smoothing:
        low, high = label_smoothing / (vocabulary - 1), 1.0 - label_smoothing
        entropy = -high * math.log(high) - label_smoothing * math.log(low)
        # sum_v q_v x_v, regrouped so that no [..., V] array of q is needed.
        expected_logit = (high - low) * target_logit + low * logit_sum
        loss = log_z - expected_logit - entropy + z_penalty
    return {
        "loss": loss,
        "cross_entropy": log_z - target_logit,
        "z_loss": z_penalty,
        "accuracy": correct,
    }


def _reduce(
    logits: Float[Array, "*batch V"] | VocabularyProduct, targets: Int[Array, "*batch"]
) -> Reduced:
    if isinstance(logits, VocabularyProduct):
        if is_large(logits):
            return reduce_in_tiles(logits, targets)
        logits = logits.logits()
    correct = is_argmax(logits, targets).astype(jnp.float32)
    return Reduced(*_reduce_vocabulary(logits, targets), correct)


@jax.custom_vjp
def _reduce_vocabulary(
    logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"]
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"], Float[Array, "*batch"]]:
    """Reduce logits to log Z, the target's logit and the sum of the logits, in float32.

    The loss needs nothing else. The derivative is written out because automatic differentiation
    keeps float32 copies of the logits for the backward pass and scatters into a zeroed [..., V]
    array; this derivative is a single fused pass.
    """
    # Take the maximum in the logits' dtype, before the cast: XLA fuses that into one pass. It does
    # not fuse `jax.nn.logsumexp` of the cast logits (five times slower from bfloat16 on CPU).
    maximum = jnp.max(logits, axis=-1).astype(jnp.float32)
    values = logits.astype(jnp.float32)
    log_z = maximum + jnp.log(jnp.sum(jnp.exp(values - maximum[..., None]), axis=-1))
    return log_z, _target_logit(logits, targets).astype(jnp.float32), jnp.sum(values, axis=-1)


def _reduce_vocabulary_forward(logits, targets):
    reduced = _reduce_vocabulary(logits, targets)
    return reduced, (logits, targets, reduced[0])


def _reduce_vocabulary_backward(residuals, cotangents):
    logits, targets, log_z = residuals
    by_log_z, by_target, by_sum = (cotangent[..., None] for cotangent in cotangents)
    probabilities = jnp.exp(logits.astype(jnp.float32) - log_z[..., None])
    gradient = by_log_z * probabilities + by_sum
    # A comparison with a counter fuses into the pass; a one-hot array or a scatter does not.
    gradient += jnp.where(_vocabulary_index(logits) == targets[..., None], by_target, 0.0)
    return gradient.astype(logits.dtype), None


_reduce_vocabulary.defvjp(_reduce_vocabulary_forward, _reduce_vocabulary_backward)


def is_argmax(
    logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """Compute `argmax(logits) == targets`, where ties also go to the lowest index.

    XLA's argmax is a scalar loop on CPU: 50 times slower than this, and slower than the loss.
    """
    target_logit = _target_logit(logits, targets)[..., None]
    earlier = _vocabulary_index(logits) < targets[..., None]
    return ~jnp.any((logits > target_logit) | ((logits == target_logit) & earlier), axis=-1)


def _target_logit(
    logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"]
) -> Float[Array, "*batch"]:
    return jnp.take_along_axis(logits, targets[..., None], axis=-1, mode="clip")[..., 0]


def _vocabulary_index(logits: Float[Array, "*batch V"]) -> Int[Array, "*batch V"]:
    return jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)


def _check(logits, targets, weights, *, z_loss: float, label_smoothing: float) -> None:
    if not logits.shape[:-1] == targets.shape == weights.shape:
        raise ValueError(
            f"logits {logits.shape} need targets and weights of shape {logits.shape[:-1]}, "
            f"not {targets.shape} and {weights.shape}"
        )
    if z_loss < 0:
        raise ValueError(f"loss.z_loss={z_loss} must be 0 or more (T5 uses 0.0001)")
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"loss.label_smoothing={label_smoothing} must lie in [0, 1)")
