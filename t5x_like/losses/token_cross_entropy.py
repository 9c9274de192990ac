"""The cross-entropy of tokens, in few passes over logits of a large vocabulary."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from t5x_like.losses.sums import LossSums
from t5x_like.losses.vocabulary_tiles import Reduced, is_large, reduce_in_tiles
from t5x_like.nn.embeddings import VocabularyProduct


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
            computed in tiles (see `losses.vocabulary_tiles`), with the same result up to float32
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
