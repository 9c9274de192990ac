"""Losses as sums and weights, right under accumulation and over many hosts."""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

# What each loss returns: the sum of the losses, the sum of the weights, {metric: (sum, weight)}.
LossSums = tuple[Float[Array, ""], Float[Array, ""], dict[str, tuple[Array, Array]]]


def cross_entropy(
    logits: Float[Array, "*batch V"],
    targets: Int[Array, "*batch"],
    weights: Num[Array, "*batch"],
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
) -> LossSums:
    """Sums the softmax cross-entropy of every token, times its weight.

    With x the logits of a token, y its target, log Z = log sum_v exp(x_v), s the label smoothing,
    and q the smoothed target distribution, q_y = 1 - s and q_v = s / (V - 1) elsewhere, a token of
    weight 1 costs, in nats,

        sum_v q_v log(q_v) - sum_v q_v (x_v - log Z)  +  z_loss * (log Z)^2.

    Label smoothing (Vaswani et al. 2017, section 5.4) is thus the divergence of the prediction
    from q, with minimum 0 whatever s is. The z-loss keeps log Z near 0 (Chowdhery et al. 2022,
    PaLM, section 5; T5 uses 1e-4). The arithmetic is float32 whatever type the logits have; their
    gradient comes back in their own type.

    Returns:
        The sum of the losses, the sum of the weights, and the metrics as (sum, weight):
        `cross_entropy`, -log p(y) without smoothing and z-loss, so that its exponential is the
        perplexity; `z_loss`, as it enters the loss; `accuracy`, 1 where y is the argmax.
        A token of non-zero weight whose target is not in [0, V) makes the loss NaN: no vocabulary
        mismatch trains silently.

    Raises:
        ValueError: shapes do not fit, z_loss is negative, or label_smoothing is not in [0, 1).
    """
    _check(logits, targets, weights, z_loss=z_loss, label_smoothing=label_smoothing)
    losses = _per_token(logits, targets, z_loss=z_loss, label_smoothing=label_smoothing)
    weights = weights.astype(jnp.float32)
    weight_sum = jnp.sum(weights)
    # Selecting, not only multiplying, keeps the NaN of a padding position's target out of the sum.
    sums = {
        name: jnp.sum(jnp.where(weights == 0, 0.0, value * weights))
        for name, value in losses.items()
    }
    loss_sum = sums.pop("loss")
    metrics = {name: (jax.lax.stop_gradient(value), weight_sum) for name, value in sums.items()}
    return loss_sum, weight_sum, metrics


def predicted(
    weights: Num[Array, "B L"], *, share: float
) -> tuple[Int[Array, "B P"], Float[Array, "B P"]]:
    """Finds the places of each row that have a loss, so that only they meet the vocabulary.

    A masked language model predicts some 15% of its input (Devlin et al. 2019, section 3.1); the
    product with the embeddings of the vocabulary, for the rest, would be thrown away.

    Args:
        weights: of the tokens; 0 where nothing is predicted.
        share: the largest part of a row that can have a weight, in (0, 1].

    Returns:
        P = ceil(share * L) positions of each row: those with a weight, in order, and after them
        others to fill up; and the weights there. In a row that has more than P of them the weights
        are NaN, and so is the loss: none is dropped in silence.

    Raises:
        ValueError: share is out of its range.
    """
    if not 0 < share <= 1:
        raise ValueError(f"the share of predicted tokens is {share}; it must lie in (0, 1]")
    length = weights.shape[1]
    places = math.ceil(round(share * length, 6))  # 0.28 * 25 is 7.000000000000001
    index = jax.lax.broadcasted_iota(jnp.int32, weights.shape, 1)
    # A sort, where top_k would do, since XLA does not partition a top_k over the rows.
    order = jnp.sort(jnp.where(weights != 0, index, index + length), axis=1)
    positions = order[:, :places] % length
    kept = jnp.take_along_axis(weights.astype(jnp.float32), positions, axis=1)
    fits = jnp.sum(weights != 0, axis=1, keepdims=True) <= places
    return positions, jnp.where(fits, kept, jnp.nan)


def classification(
    logits: Float[Array, "B C"], labels: Int[Array, " B"], weights: Num[Array, " B"]
) -> LossSums:
    """The cross-entropy of one label for each row, times its weight, in nats.

    Returns:
        The sum of the losses, the sum of the weights, and `cross_entropy` and `accuracy`. A label
        that is not in [0, C) makes the loss NaN where it has a weight.

    Raises:
        ValueError: shapes do not fit.
    """
    total, weight, metrics = cross_entropy(logits, labels, weights)
    return total, weight, {name: metrics[name] for name in ("cross_entropy", "accuracy")}


def binary(
    logits: Float[Array, "*batch"], labels: Bool[Array, "*batch"], weights: Num[Array, "*batch"]
) -> LossSums:
    """The cross-entropy of a yes or no for each token, times its weight, in nats.

    Returns:
        The sum of the losses, the sum of the weights, and `cross_entropy`, `accuracy`, `precision`
        (of those called yes, how many are) and `recall` (of those that are, how many are found).

    Raises:
        ValueError: shapes do not fit.
    """
    if not logits.shape == labels.shape == weights.shape:
        raise ValueError(
            f"logits {logits.shape} need labels and weights of the same shape, "
            f"not {labels.shape} and {weights.shape}"
        )
    weights, logits = weights.astype(jnp.float32), logits.astype(jnp.float32)
    each = jnp.where(labels, jax.nn.softplus(-logits), jax.nn.softplus(logits))
    total, weight = jnp.sum(each * weights), jnp.sum(weights)
    called = logits > 0
    found = jnp.sum(weights * (called & labels))
    metrics = {
        "cross_entropy": (jax.lax.stop_gradient(total), weight),
        "accuracy": (jnp.sum(weights * (called == labels)), weight),
        "precision": (found, jnp.sum(weights * called)),
        "recall": (found, jnp.sum(weights * labels)),
    }
    return total, weight, metrics


def tagging(
    logits: Float[Array, "B L C"], tags: Int[Array, "B L"], weights: Num[Array, "B L"]
) -> LossSums:
    """The cross-entropy of a tag for each token, times its weight, in nats.

    Returns:
        As `classification`, by token, and `exact`: the rows whose tags are all right, out of those
        with a weight.

    Raises:
        ValueError: shapes do not fit.
    """
    total, weight, metrics = cross_entropy(logits, tags, weights)
    counts = weights != 0
    right = jnp.all(_is_argmax(logits, tags) | ~counts, axis=1)
    rows = jnp.any(counts, axis=1)
    exact = _count(right & rows), _count(rows)
    kept = {name: metrics[name] for name in ("cross_entropy", "accuracy")}
    return total, weight, {**kept, "exact": exact}


def regression(
    predictions: Float[Array, " B"], values: Float[Array, " B"], weights: Num[Array, " B"]
) -> LossSums:
    """The squared error of a value for each row, times its weight.

    Returns:
        The sum of the losses, the sum of the weights, and `squared_error` and `absolute_error`.

    Raises:
        ValueError: shapes do not fit.
    """
    if not predictions.shape == values.shape == weights.shape:
        raise ValueError(
            f"predictions {predictions.shape} need values and weights of the same shape, "
            f"not {values.shape} and {weights.shape}"
        )
    weights = weights.astype(jnp.float32)
    error = predictions.astype(jnp.float32) - values
    error = jnp.where(weights == 0, 0.0, error)  # of a padding row it may be anything
    total, weight = jnp.sum(jnp.square(error) * weights), jnp.sum(weights)
    sums = {"squared_error": total, "absolute_error": jnp.sum(jnp.abs(error) * weights)}
    return total, weight, {k: (jax.lax.stop_gradient(v), weight) for k, v in sums.items()}


def spans(
    start_logits: Float[Array, "B L"],
    end_logits: Float[Array, "B L"],
    answer: Int[Array, "B 2"],
    mask: Bool[Array, "B L"],
) -> LossSums:
    """The cross-entropy of the first and of the last token of an answer: Devlin et al. 2019, 4.2.

    Each is a choice among the positions of the row; the loss of a row, in nats, is the mean of both
    (the paper's is their sum, its code halves it).

    Args:
        answer: the positions of the first and of the last token; (0, 0), the token of the class,
            where there is no answer (section 4.3).
        mask: True where an answer may begin or end; a row without any counts for nothing.

    Returns:
        The sum of the losses, the number of rows, and `cross_entropy` and `exact`: both the first
        and the last token have the largest logits. An answer out of the row makes the loss NaN,
        one where the mask is False makes it infinite.

    Raises:
        ValueError: shapes do not fit.
    """
    rows = jnp.any(mask, axis=1)
    allowed = mask | ~rows[:, None]  # a softmax over nothing has no gradient, not even times 0
    total, right = jnp.zeros(()), rows
    for end, logits in enumerate((start_logits, end_logits)):
        logits = jnp.where(allowed, logits, -jnp.inf)
        total += cross_entropy(logits, answer[:, end], rows)[0] / 2
        right &= _is_argmax(logits, answer[:, end])
    number = _count(rows)
    metrics = {"cross_entropy": (jax.lax.stop_gradient(total), number)}
    return total, number, {**metrics, "exact": (_count(right), number)}


def combine(terms: Mapping[str, tuple[float, LossSums]]) -> LossSums:
    """Adds losses that count different things: tokens that are masked, say, and pairs of sentences.

    With (scale_i, (sum_i, weight_i, metrics_i)) the terms, the first of which is what is counted,
    the sum is

        weight_1 * sum_i scale_i * sum_i / weight_i,

    a term without any weight being 0, and its weight is weight_1: divided, they are the scaled sum
    of the means. Under microbatches, whose sums are added before they are divided, the mean of
    another term than the first is thus one over the microbatches, each counted by its weight_1.

    Returns:
        The sum, the weight, and the metrics: of the first term by their names, of each other one
        as `<term>/<name>`.

    Raises:
        ValueError: there are no terms.
    """
    if not terms:
        raise ValueError("there are no losses to combine")
    (scale, (total, weight, metrics)), *_ = terms.values()
    total, metrics = scale * total, dict(metrics)
    for name, (scale, (other, other_weight, other_metrics)) in list(terms.items())[1:]:
        nothing = other_weight == 0
        mean = jnp.where(nothing, 0.0, other) / jnp.where(nothing, 1.0, other_weight)
        total += weight * scale * mean
        metrics |= {f"{name}/{key}": value for key, value in other_metrics.items()}
    return total, weight, metrics


def _count(flags: Bool[Array, " B"]) -> Float[Array, ""]:
    return jnp.sum(flags, dtype=jnp.float32)


def _per_token(
    logits: Float[Array, "*batch V"],
    targets: Int[Array, "*batch"],
    *,
    z_loss: float,
    label_smoothing: float,
) -> dict[str, Float[Array, "*batch"]]:
    """The loss of each token and its metrics, unweighted."""
    vocabulary = logits.shape[-1]
    log_z, target_logit, logit_sum = _reduce_vocabulary(logits, targets)
    # An unknown target has no logit; NaN here reaches every sum it has a weight in.
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
        "accuracy": _is_argmax(logits, targets).astype(jnp.float32),
    }


@jax.custom_vjp
def _reduce_vocabulary(
    logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"]
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"], Float[Array, "*batch"]]:
    """The log Z, the target's logit and the sum of the logits: all the loss needs of V, in float32.

    The derivative is written out because the automatic one keeps float32 copies of the logits for
    the backward pass and scatters into a zeroed [..., V] array; this one is a single fused pass.
    """
    # The maximum in the logits' own type, and only then the cast: XLA fuses that into one pass,
    # which `jax.nn.logsumexp` of the cast logits is not (five times slower from bfloat16 on CPU).
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


def _is_argmax(
    logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """Equal to `argmax(logits) == targets`, ties going to the lower index as there.

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
        raise ValueError(f"loss.z_loss is {z_loss}; it must be 0 or more (T5 uses 0.0001)")
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"loss.label_smoothing is {label_smoothing}; it must lie in [0, 1)")
