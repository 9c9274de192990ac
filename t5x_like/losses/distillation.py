"""Losses of a student that learns from a teacher: of their predictions and their hidden states."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from t5x_like.losses.sums import LossSums, weighted_sum


def soft_targets(
    student: Float[Array, "*batch V"],
    teacher: Float[Array, "*batch V"],
    weights: Num[Array, "*batch"],
    *,
    temperature: float,
) -> LossSums:
    """The divergence of the student's distribution from the teacher's: Hinton et al. 2015.

    With t and s the softmaxes of the logits divided by the temperature T, a token costs

        T^2 sum_v t_v (log t_v - log s_v)

    nats. The factor T^2 offsets the gradient, which is smaller by it (section 2 there).

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
    return weighted_sum("divergence", divergence, weights)


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
    return weighted_sum("distance", 1 - jnp.sum(student * teacher, axis=-1), weights)
