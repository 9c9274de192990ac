"""Distillation losses of a student: on a teacher's predictions, hidden states and attention."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from t5x_like.losses.labels import real_rows
from t5x_like.losses.sums import LossSums, weighted_sum
from t5x_like.nn.attention.cores import masked_as_zero
from t5x_like.nn.compute import Batch, Outputs

# The fine-tuning heads whose teacher predicts a distribution that a student can learn from.
DISTILLED = ("classification", "tagging", "question_answering")
_NEVER = -1e9  # the logit of padding, whose probability is then 0


def settings(
    chosen: Mapping[str, float | None], defaults: Mapping[str, float], *, has_teacher: bool
) -> dict[str, float]:
    """Fill the distillation settings that are None with their defaults.

    Raises:
        ValueError: a setting is given without a teacher.
    """
    for name in (name for name, value in chosen.items() if value is not None and not has_teacher):
        raise ValueError(f"loss.{name} is for a student with a teacher: model.teacher.folder")
    return {name: defaults[name] if value is None else value for name, value in chosen.items()}


def distributions(head: str, outputs: Outputs, batch: Batch) -> Float[Array, "..."]:
    """Return the logits that student and teacher are compared on, for a head in DISTILLED.

    They are [B, C] for classes, [B, L, C] for tags, and [B, 2, L] for an answer's first and last
    token, each over the tokens of the row.
    """
    if head != "question_answering":
        return outputs["logits"]
    ends = jnp.stack([outputs["start_logits"], outputs["end_logits"]], axis=1)
    return jnp.where((batch["encoder_segment_ids"] > 0)[:, None], ends, _NEVER)


def distribution_weights(head: str, batch: Batch) -> Num[Array, "..."]:
    """Return the weights of the `distributions`: 0 on padding, and on tokens without a tag."""
    if head == "tagging":
        return batch["encoder_loss_weights"]
    rows = real_rows(batch)
    return jnp.stack([rows] * 2, axis=1) if head == "question_answering" else rows


def soft_targets(
    student: Float[Array, "*batch V"],
    teacher: Float[Array, "*batch V"],
    weights: Num[Array, "*batch"],
    *,
    temperature: float,
) -> LossSums:
    """Return the divergence of the student's distribution from the teacher's: Hinton et al. 2015.

    With t and s the softmaxes of the logits divided by the temperature T, a token costs

        T^2 sum_v t_v (log t_v - log s_v)

    nats. The factor T^2 compensates for gradients that scale as 1 / T^2 (section 2 of the paper).

    Returns:
        The weighted sum over tokens, the sum of the weights, and `divergence`.

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
    """Return 1 - cos(student, teacher) of the hidden states (Sanh et al. 2019, section 2).

    Returns:
        The weighted sum over tokens, the sum of the weights, and `distance`.
    """
    student, teacher = (
        x.astype(jnp.float32) / jnp.linalg.norm(x.astype(jnp.float32), axis=-1, keepdims=True)
        for x in (student, teacher)
    )
    return weighted_sum("distance", 1 - jnp.sum(student * teacher, axis=-1), weights)


def soft_cross_entropy(
    student: Float[Array, "*batch V"],
    teacher: Float[Array, "*batch V"],
    weights: Num[Array, "*batch"],
    *,
    temperature: float,
) -> LossSums:
    """Return the student's cross-entropy against the teacher's distribution: TinyBERT, equation 10.

    With t and s the softmaxes of the logits divided by the temperature, a row costs `-sum_v t_v log
    s_v` nats (Jiao et al. 2019, section 3.1). At temperature 1 the gradient equals the gradient of
    `soft_targets`.

    Returns:
        The weighted sum over rows, the sum of the weights, and `soft_cross_entropy`.

    Raises:
        ValueError: the temperature is not above 0.
    """
    if temperature <= 0:
        raise ValueError(f"loss.temperature={temperature} must be above 0")
    student, teacher = (x.astype(jnp.float32) / temperature for x in (student, teacher))
    nats = -jnp.sum(jax.nn.softmax(teacher) * jax.nn.log_softmax(student), axis=-1)
    return weighted_sum("soft_cross_entropy", nats, weights)


def hidden_states(
    student: Float[Array, "M B L D"], teacher: Float[Array, "M B L D"], weights: Num[Array, "B L"]
) -> LossSums:
    """Return the squared error of hidden states, averaged over D and summed over M layers.

    Jiao et al. 2019, section 3.1, equations 8 and 9. The caller has projected the student's states
    to the teacher's width. Computed in float32 for states of any dtype.

    Returns:
        The weighted sum over tokens, the sum of the weights, and `distance`.
    """
    squared = jnp.square(student.astype(jnp.float32) - teacher.astype(jnp.float32))
    return weighted_sum("distance", jnp.sum(jnp.mean(squared, axis=-1), axis=0), weights)


def attention_scores(
    student: Float[Array, "M B H L L"],
    teacher: Float[Array, "M B H L L"],
    weights: Num[Array, "B L L"],
) -> LossSums:
    """Return the squared error of pre-softmax scores, averaged over H and summed over M layers.

    Jiao et al. 2019, section 3.1, equation 7. Masked scores count as 0 for student and teacher.

    Args:
        weights: the weight of each (query, key) pair.

    Returns:
        The weighted sum over pairs, the sum of the weights, and `distance`.
    """
    student, teacher = (masked_as_zero(x.astype(jnp.float32)) for x in (student, teacher))
    squared = jnp.mean(jnp.square(student - teacher), axis=2)
    return weighted_sum("distance", jnp.sum(squared, axis=0), weights)
