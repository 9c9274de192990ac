"""Clipping of the gradient of the batch's loss sum rather than of its mean, as in T5X."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array


def clip_sum(limit: float) -> optax.GradientTransformationExtraArgs:
    """Convert the gradient of the mean to the gradient of the sum, and clip its global norm.

    With g the gradient of the mean loss, w the sum of the batch's weights and G = w g the gradient
    of the summed loss, the output is G min(1, limit / |G|). The `update` function needs `weight=w`.
    """

    def update(
        updates: Any, state: Any, params: Any = None, *, weight: Array, **_: Any
    ) -> tuple[Any, Any]:
        del params
        norm = weight * optax.tree.norm(updates)
        factor = weight * jnp.minimum(1.0, limit / jnp.where(norm == 0, 1.0, norm))
        return jax.tree.map(lambda g: g * factor.astype(g.dtype), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
