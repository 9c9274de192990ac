"""Losses as sums and weights, which add up over microbatches, devices and hosts."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from t5x_like.nn.compute import Batch

# The result of a loss: the sum of the losses, the sum of the weights, {metric: (sum, weight)}.
LossSums = tuple[Float[Array, ""], Float[Array, ""], dict[str, tuple[Array, Array]]]


def weighted_sum(
    name: str, values: Float[Array, "*batch"], weights: Num[Array, "*batch"]
) -> LossSums:
    """Sum losses times their weights.

    Returns:
        The sum, the sum of the weights, and both as the metric `name`.
    """
    weights = weights.astype(jnp.float32)
    total, weight = jnp.sum(values * weights), jnp.sum(weights)
    return total, weight, {name: (jax.lax.stop_gradient(total), weight)}


def combine(terms: Mapping[str, tuple[float | Array, LossSums]]) -> LossSums:
    """Add losses with different denominators, such as masked tokens and pairs of sentences.

    `terms` is {name: (scale_i, (sum_i, weight_i, metrics_i))}, with the main term first. The sum is

        weight_1 * sum_i scale_i * sum_i / weight_i,

    where a term of weight 0 counts as 0. The weight is weight_1, so that sum / weight is the scaled
    sum of the means. With gradient accumulation the sums of the microbatches are added before the
    division, so every term but the first becomes a mean of microbatch means, weighted by weight_1.

    Returns:
        The sum, the weight, and the metrics; the metrics of the first term keep their names, those
        of the others become `<term>/<name>`.

    Raises:
        ValueError: `terms` is empty.
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


def forward(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    method: str | None = None,
    mutable: Any = False,
    **arguments: Any,
) -> Any:
    """Run a network on a batch, with dropout if a key is given.

    Args:
        rng: the dropout key; None in evaluation, where the network is deterministic.
        method: the module's method to call; None for `__call__`.
        mutable: collections that the forward pass writes, see `flax.linen.Module.apply`.
        arguments: further arguments of the method.

    Returns:
        The outputs of the method; with `mutable`, the pair (outputs, collections).
    """
    return module.apply(
        {"params": params},
        batch,
        deterministic=rng is None,
        rngs=None if rng is None else {"dropout": rng},
        method=method,
        mutable=mutable,
        **arguments,
    )
