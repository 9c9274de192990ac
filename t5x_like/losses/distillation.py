"""Losses of a student that learns from a teacher: what it says, and what it holds in mind."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from t5x_like.losses.terms import LossSums


def soft_targets(
    student: Float[Array, "*batch V"],
    teacher: Float[Array, "*batch V"],
    weights: Num[Array, "*batch"],
    *,
    temperature: float,
) -> LossSums:
    """The divergence of the student's from the teacher's distribution: Hinton et al. 2015.

    With t and s the softmaxes of the logits divided by the temperature T, a token costs

        T^2 sum_v t_v (log t_v - log s_v)

    nats; T^2 makes up for the gradient, which shrinks by it (section 2 there).

    Returns:
        The sum over the tokens, each times its weight, the sum of the weights, and `divergence`.

    Raises:
        ValueError: the temperature is not above 0.
    """
    if temperature <= 0:
        raise ValueError(f"loss.temperature={temperature} must be above 0")
    log_s, log_t = (
        jax.nn.log_softmax(logits.astype(jnp.float32) / temperature)
        for logits in (student, teacher)
    )
    divergence = temperature**2 * jnp.sum(jnp.exp(log_t) * (log_t - log_s), axis=-1)
    return _sums("divergence", divergence, weights)


def cosine(
    student: Float[Array, "*batch D"],
    teacher: Float[Array, "*batch D"],
    weights: Num[Array, "*batch"],
) -> LossSums:
    """1 minus the cosine of the angle between two vectors (Sanh et al. 2019, section 2).

    Returns:
        The sum over the tokens, each times its weight, the sum of the weights, and `distance`.
    """
    student, teacher = (
        x.astype(jnp.float32) / jnp.linalg.norm(x.astype(jnp.float32), axis=-1, keepdims=True)
        for x in (student, teacher)
    )
    return _sums("distance", 1 - jnp.sum(student * teacher, axis=-1), weights)


def _sums(name: str, values: Array, weights: Array) -> LossSums:
    weights = weights.astype(jnp.float32)
    total, weight = jnp.sum(values * weights), jnp.sum(weights)
    return total, weight, {name: (jax.lax.stop_gradient(total), weight)}
