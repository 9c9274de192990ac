"""Losses on comparisons: which of the responses to a prompt people prefer.

And on judgements: whether a response violates a rule.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t5x_like.losses.sums import LossSums, forward
from t5x_like.nn.compute import Batch


def loss(module: nn.Module, params: Any, batch: Batch, rng: jax.Array | None) -> LossSums:
    """Return the loss of a reward model on comparisons, see `ranking`.

    Args:
        module: a network from rows to rewards.
        batch: the fields that `rows` reads, and `ranks` [B, K].
        rng: the dropout key; None in evaluation.
    """
    rewards = forward(module, params, rows(batch), rng)
    return ranking(rewards.reshape(batch["ranks"].shape), batch["ranks"])


def rows(batch: Batch) -> dict[str, Array]:
    """Flatten a batch of comparisons to one row per response.

    Args:
        batch: decoder fields [B, K, L], one row for each response; encoder fields [B, S], the
            prompts, which are repeated for each response.

    Returns:
        The fields of both sides, with B * K rows.
    """
    responses = batch["ranks"].shape[1]
    flat = {}
    for name, values in batch.items():
        if name.startswith("decoder_"):
            flat[name] = values.reshape(-1, *values.shape[2:])
        elif name.startswith("encoder_"):
            flat[name] = jnp.repeat(values, responses, axis=0)
    return flat


def pairs(ranks: Int[Array, "B K"]) -> Bool[Array, "B K K"]:
    """Return whether response i is preferred to response j, at [b, i, j].

    Args:
        ranks: 1 for the best response; tied responses have equal ranks; 0 marks padding.
    """
    first, second = ranks[:, :, None], ranks[:, None, :]
    return (first > 0) & (second > 0) & (first < second)


def ranking(rewards: Float[Array, "B K"], ranks: Int[Array, "B K"]) -> LossSums:
    """Return the loss of the ranked responses to each prompt: Ouyang et al. 2022, equation 1.

    A prompt costs the mean over its pairs of -log sigmoid(r_w - r_l), where r_w is the reward of
    the preferred response. Without ties this is 1 / C(K, 2) times the sum over all pairs.

    Args:
        ranks: see `pairs`.

    Returns:
        The sum over prompts, the number of prompts with a pair, and the metrics `accuracy`, the
        share of pairs whose preferred response has the higher reward, `margin`, the mean of
        r_w - r_l, and `reward`, the mean reward.
    """
    preferred = pairs(ranks)
    # Mask before computing: padding may have any reward, which could make gradients NaN.
    margins = jnp.where(preferred, rewards[:, :, None] - rewards[:, None, :], 0.0)
    each = jnp.where(preferred, jax.nn.softplus(-margins), 0.0)
    number = jnp.sum(preferred, axis=(1, 2), dtype=jnp.float32)
    total = jnp.sum(jnp.sum(each, axis=(1, 2)) / jnp.maximum(number, 1.0))
    ranked = ranks > 0
    metrics = {
        **pair_metrics(margins, preferred),
        "reward": (jnp.sum(jnp.where(ranked, rewards, 0.0)), jnp.sum(ranked, dtype=jnp.float32)),
    }
    return total, jnp.sum(number > 0, dtype=jnp.float32), jax.lax.stop_gradient(metrics)


def pair_metrics(
    margins: Float[Array, "B K K"], preferred: Bool[Array, "B K K"]
) -> dict[str, tuple[Array, Array]]:
    """Return `accuracy`, the share of pairs with a margin above 0, and `margin`, the mean."""
    number = jnp.sum(preferred, dtype=jnp.float32)
    right = jnp.sum(preferred & (margins > 0), dtype=jnp.float32)
    return {
        "accuracy": (right, number),
        "margin": (jnp.sum(jnp.where(preferred, margins, 0.0)), number),
    }


def judgement_loss(module: nn.Module, params: Any, batch: Batch, rng: jax.Array | None) -> LossSums:
    """Return the loss of a rule model on judgements, see `violations`.

    Args:
        module: a network from rows to logits.
        batch: the fields that `rows` reads, and `ranks` [B, 1].
        rng: the dropout key; None in evaluation.
    """
    logits = forward(module, params, rows(batch), rng)
    return violations(logits.reshape(batch["ranks"].shape), batch["ranks"])


def violations(logits: Float[Array, "B K"], ranks: Int[Array, "B K"]) -> LossSums:
    """Return the binary cross-entropy of whether responses violate a rule.

    Args:
        logits: log p / (1 - p), where p is the probability that the response violates the rule.
        ranks: 1 for a response that follows the rule, 2 for one that violates it, 0 for padding.

    Returns:
        The sum over responses, their number, and the metrics `accuracy` and `violated`, the share
        of responses that violate their rule.
    """
    ranked, violated = ranks > 0, ranks > 1
    number = jnp.sum(ranked, dtype=jnp.float32)
    each = jax.nn.softplus(jnp.where(violated, -logits, logits))
    total = jnp.sum(jnp.where(ranked, each, 0.0))
    metrics = {
        "accuracy": (jnp.sum(ranked & ((logits > 0) == violated), dtype=jnp.float32), number),
        "violated": (jnp.sum(violated, dtype=jnp.float32), number),
    }
    return total, number, jax.lax.stop_gradient(metrics)
