"""Losses as sums and weights, which add up over microbatches, devices and hosts."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

# What each loss returns: the sum of the losses, the sum of the weights, {metric: (sum, weight)}.
LossSums = tuple[Float[Array, ""], Float[Array, ""], dict[str, tuple[Array, Array]]]


def weighted_sum(
    name: str, values: Float[Array, "*batch"], weights: Num[Array, "*batch"]
) -> LossSums:
    """Sum losses times their weights.

    Returns:
        The sum, the sum of the weights, and the same as the metric `name`.
    """
    weights = weights.astype(jnp.float32)
    total, weight = jnp.sum(values * weights), jnp.sum(weights)
    return total, weight, {name: (jax.lax.stop_gradient(total), weight)}


def combine(terms: Mapping[str, tuple[float | Array, LossSums]]) -> LossSums:
    """Add losses that count different things: masked tokens and pairs of sentences, for example.

    The terms are (scale_i, (sum_i, weight_i, metrics_i)) by name, the main one first. The sum is

        weight_1 * sum_i scale_i * sum_i / weight_i,

    where a term without any weight counts as 0, and the weight is weight_1: the quotient is the
    scaled sum of the means. Microbatches add their sums before the division, so the mean of every
    term but the first is then a mean over the microbatches, each weighted by its weight_1.

    Returns:
        The sum, the weight, and the metrics: those of the first term under their own names, those
        of the others as `<term>/<name>`.

    Raises:
        ValueError: there are no terms.
    """
    if not terms:
        raise ValueError("there are no losses to combine: give at least one")
    (scale, (total, weight, metrics)), *_ = terms.values()
    total, metrics = scale * total, dict(metrics)
    for name, (scale, (other, other_weight, other_metrics)) in list(terms.items())[1:]:
        nothing = other_weight == 0
        mean = jnp.where(nothing, 0.0, other) / jnp.where(nothing, 1.0, other_weight)
        total += weight * scale * mean
        metrics |= {f"{name}/{key}": value for key, value in other_metrics.items()}
    return total, weight, metrics
