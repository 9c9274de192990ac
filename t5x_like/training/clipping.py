"""Clip the gradient of a sum over the batch, as T5X does, and not of the mean."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array


def clip_sum(limit: float) -> optax.GradientTransformationExtraArgs:
    """Turn the gradient of a mean into the gradient of the sum, of a global norm up to `limit`.

    With g the gradient of the mean, w the sum of the weights of the batch and G = w g the gradient
    of the sum, the output is G min(1, limit / |G|). Its `update` needs `weight=`, w.
    """

    def update(
        updates: Any, state: Any, params: Any = None, *, weight: Array, **_: Any
    ) -> tuple[Any, Any]:
        del params
        norm = weight * optax.tree.norm(updates)
        factor = weight * jnp.minimum(1.0, limit / jnp.where(norm == 0, 1.0, norm))
        return jax.tree.map(lambda g: g * factor.astype(g.dtype), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
