"""Losses on labels: classes, binary labels, tags, numbers and spans."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from t5x_like.losses.sums import LossSums
from t5x_like.losses.token_cross_entropy import cross_entropy, is_argmax
from t5x_like.nn.compute import Batch
from t5x_like.nn.linear_chain import Chain, best_tags, log_likelihood


def real_rows(batch: Batch) -> Bool[Array, " B"]:
    """Return which rows of an encoder's batch are not padding."""
    return batch["encoder_segment_ids"][:, 0] > 0


def constant_accuracy(
    labels: Int[Array, "*batch"], weights: Num[Array, "*batch"], *, classes: int
) -> tuple[Float[Array, " C"], Float[Array, ""]]:
    """Sum the weights of each class and of all classes, for the metric `constant_accuracy`.

    The share of the most frequent class is the accuracy of a constant prediction, the baseline for
    `accuracy` (`training.metrics.MostFrequent`).
    """
    weights = weights.astype(jnp.float32)
    each = jax.nn.one_hot(labels, classes) * weights[..., None]
    return jnp.sum(each, axis=tuple(range(labels.ndim))), jnp.sum(weights)


def classification(
    logits: Float[Array, "B C"], labels: Int[Array, " B"], weights: Num[Array, " B"]
) -> LossSums:
    """Sum the cross-entropy of the class of each row, times its weight, in nats.

    Returns:
        The sum of the losses, the sum of the weights, and `cross_entropy`, `accuracy` and
        `constant_accuracy`. A label outside [0, C) with a nonzero weight makes the loss NaN.

    Raises:
        ValueError: shapes do not fit.
    """
    total, weight, metrics = cross_entropy(logits, labels, weights)
    constant = constant_accuracy(labels, weights, classes=logits.shape[-1])
    selected = {name: metrics[name] for name in ("cross_entropy", "accuracy")}
    return total, weight, {**selected, "constant_accuracy": constant}


def binary(
    logits: Float[Array, "*batch"], labels: Bool[Array, "*batch"], weights: Num[Array, "*batch"]
) -> LossSums:
    """Sum the binary cross-entropy of each label, times its weight, in nats.

    Returns:
        The sum of the losses, the sum of the weights, and `cross_entropy`, `accuracy`,
        `constant_accuracy`, and `precision` and `recall` of the label True.

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
    positive = logits > 0
    true_positives = jnp.sum(weights * (positive & labels))
    metrics = {
        "cross_entropy": (jax.lax.stop_gradient(total), weight),
        "accuracy": (jnp.sum(weights * (positive == labels)), weight),
        "constant_accuracy": constant_accuracy(labels.astype(jnp.int32), weights, classes=2),
        "precision": (true_positives, jnp.sum(weights * positive)),
        "recall": (true_positives, jnp.sum(weights * labels)),
    }
    return total, weight, metrics


def tagging(
    logits: Float[Array, "B L C"], tags: Int[Array, "B L"], weights: Num[Array, "B L"]
) -> LossSums:
    """Sum the cross-entropy of the tag of each token, times its weight, in nats.

    Returns:
        The values of `classification`, over tokens, and `exact`: the share of the rows with a
        nonzero weight whose tags are all right.

    Raises:
        ValueError: shapes do not fit.
    """
    total, weight, metrics = cross_entropy(logits, tags, weights)
    exact = _exact(is_argmax(logits, tags), weights != 0)
    selected = {name: metrics[name] for name in ("cross_entropy", "accuracy")}
    constant = constant_accuracy(tags, weights, classes=logits.shape[-1])
    return total, weight, {**selected, "constant_accuracy": constant, "exact": exact}


def chained_tagging(
    chain: Chain,
    logits: Float[Array, "B L C"],
    tags: Int[Array, "B L"],
    counts: Bool[Array, "B L"],
) -> LossSums:
    """Sum the negative log-likelihood of each row's sequence of tags, in nats.

    Args:
        counts: which tokens have a tag.

    Returns:
        The sum, the number of tags, and the metrics of `tagging`, of the most likely sequences;
        `cross_entropy` is also for each tag.
    """
    total = -jnp.sum(log_likelihood(chain, logits, tags, counts))
    right = best_tags(chain, logits, counts) == tags
    number = jnp.sum(counts, dtype=jnp.float32)
    metrics = {
        "cross_entropy": (jax.lax.stop_gradient(total), number),
        "accuracy": (jnp.sum(right & counts, dtype=jnp.float32), number),
        "constant_accuracy": constant_accuracy(tags, counts, classes=logits.shape[-1]),
        "exact": _exact(right, counts),
    }
    return total, number, metrics


def _exact(
    right: Bool[Array, "B L"], counts: Bool[Array, "B L"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the number of rows whose tags are all right, and of rows with tags."""
    rows = jnp.any(counts, axis=1)
    return _count(jnp.all(right | ~counts, axis=1) & rows), _count(rows)


def regression(
    predictions: Float[Array, " B"], values: Float[Array, " B"], weights: Num[Array, " B"]
) -> LossSums:
    """Sum the squared error of the number of each row, times its weight.

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
    error = jnp.where(weights == 0, 0.0, error)  # padding may hold any number, NaN too
    total, weight = jnp.sum(jnp.square(error) * weights), jnp.sum(weights)
    sums = {"squared_error": total, "absolute_error": jnp.sum(jnp.abs(error) * weights)}
    return total, weight, {k: (jax.lax.stop_gradient(v), weight) for k, v in sums.items()}


def spans(
    start_logits: Float[Array, "B L"],
    end_logits: Float[Array, "B L"],
    answer: Int[Array, "B 2"],
    mask: Bool[Array, "B L"],
) -> LossSums:
    """Sum the cross-entropy of the first and last token of answers (Devlin et al. 2019, 4.2).

    Both are softmaxes over the positions of the row; the loss of a row, in nats, is their mean, as
    in the paper's code (the paper adds the two).

    Args:
        answer: the positions of the first and of the last token; twice the position of [CLS] if
            there is no answer (section 4.3).
        mask: True where an answer may begin or end; a row without a True is not counted.

    Returns:
        The sum of the losses, the number of rows, and `cross_entropy` and `exact`: the share of
        rows where both the first and the last token have the largest logits. An answer outside the
        row makes the loss NaN, and an answer where the mask is False makes it infinite.

    Raises:
        ValueError: shapes do not fit.
    """
    rows = jnp.any(mask, axis=1)
    allowed = mask | ~rows[:, None]  # a softmax over nothing has no gradient, not even times 0
    total, exact = jnp.zeros(()), rows
    for end, logits in enumerate((start_logits, end_logits)):
        logits = jnp.where(allowed, logits, -jnp.inf)
        total += cross_entropy(logits, answer[:, end], rows)[0] / 2
        exact &= is_argmax(logits, answer[:, end])
    number = _count(rows)
    metrics = {"cross_entropy": (jax.lax.stop_gradient(total), number)}
    return total, number, {**metrics, "exact": (_count(exact), number)}


def _count(flags: Bool[Array, " B"]) -> Float[Array, ""]:
    return jnp.sum(flags, dtype=jnp.float32)
