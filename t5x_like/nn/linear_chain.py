"""A linear-chain conditional random field over tags: Lafferty et al. 2001.

The score of a sequence of tags is the sum of the logits of the tags, of the transitions from each
tag to the next, and of the first and the last tag; its probability is the softmax over all
sequences. Positions that do not count, such as padding, are skipped: the next tag that counts
follows the last tag that counted.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


@flax.struct.dataclass
class Chain:
    """The parameters of a chain.

    Attributes:
        transitions: of tag i being followed by tag j at [i, j].
        first, last: of a sequence beginning and ending with each tag.
    """

    transitions: Float[Array, "C C"]
    first: Float[Array, " C"]
    last: Float[Array, " C"]


def log_likelihood(
    chain: Chain,
    logits: Float[Array, "B L C"],
    tags: Int[Array, "B L"],
    counts: Bool[Array, "B L"],
) -> Float[Array, " B"]:
    """Return the log-likelihood of each row's tags, in nats; 0 for a row where nothing counts."""

    def step(carry: Any, inputs: Any) -> tuple[Any, None]:
        alpha, score, before, begun = carry
        logit, tag, count = inputs
        after = jax.nn.logsumexp(alpha[:, :, None] + chain.transitions, axis=1)
        updated = jnp.where(begun[:, None], after, chain.first) + logit
        added = jnp.where(begun, chain.transitions[before, tag], chain.first[tag])
        added += jnp.take_along_axis(logit, tag[:, None], axis=1)[:, 0]
        alpha = jnp.where(count[:, None], updated, alpha)
        score += jnp.where(count, added, 0)
        return (alpha, score, jnp.where(count, tag, before), begun | count), None

    rows = len(logits)
    carry = (
        jnp.zeros((rows, logits.shape[-1])),
        jnp.zeros(rows),
        jnp.zeros(rows, tags.dtype),
        jnp.zeros(rows, bool),
    )
    (alpha, score, before, begun), _ = jax.lax.scan(step, carry, _by_position(logits, tags, counts))
    total = jax.nn.logsumexp(alpha + chain.last, axis=1)
    return jnp.where(begun, score + chain.last[before] - total, 0)


def best_tags(
    chain: Chain, logits: Float[Array, "B L C"], counts: Bool[Array, "B L"]
) -> Int[Array, "B L"]:
    """Return the tags of the most likely sequence (Viterbi); any tag where nothing counts."""
    classes = jnp.arange(logits.shape[-1])

    def forward(carry: Any, inputs: Any) -> tuple[Any, Array]:
        best, begun = carry
        logit, count = inputs
        scores = best[:, :, None] + chain.transitions
        updated = jnp.where(begun[:, None], jnp.max(scores, axis=1), chain.first) + logit
        origin = jnp.where((begun & count)[:, None], jnp.argmax(scores, axis=1), classes)
        return (jnp.where(count[:, None], updated, best), begun | count), origin

    def backward(tag: Array, origin: Array) -> tuple[Array, Array]:
        return jnp.take_along_axis(origin, tag[:, None], axis=1)[:, 0], tag

    carry = jnp.zeros((len(logits), len(classes))), jnp.zeros(len(logits), bool)
    (best, _), origins = jax.lax.scan(forward, carry, _by_position(logits, counts))
    last = jnp.argmax(best + chain.last, axis=1)
    return jax.lax.scan(backward, last, origins, reverse=True)[1].T


def _by_position(*arrays: Array) -> tuple[Array, ...]:
    return tuple(jnp.moveaxis(array, 1, 0) for array in arrays)
