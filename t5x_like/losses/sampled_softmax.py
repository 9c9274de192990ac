"""The softmax over a large vocabulary: of a sample of it, or of all of it a few words at a time."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, PRNGKeyArray

from t5x_like.losses.sums import LossSums
from t5x_like.losses.token_cross_entropy import cross_entropy
from t5x_like.models.heads.word_heads import to_vocabulary

_NEVER = -1e9  # the logit of a word that is not a negative


def draw(
    key: PRNGKeyArray, *, vocabulary: int, number: int
) -> tuple[Int[Array, " S"], Float[Array, ""]]:
    """Draw different words, frequent ones more often, for a vocabulary sorted by frequency.

    Word k of V has the share p_k = log((k + 2) / (k + 1)) / log(V + 1) (Zipf's law). Words arrive
    at random times with the rates p_k, and those that arrive first are drawn: so are words drawn
    one by one with repeats left out.

    Returns:
        The `number` words, and the time t at which the next one arrives. A word arrives before t
        with the probability 1 - exp(-p_k t), and a sum over the vocabulary is estimated without
        bias by the sum over the drawn words, each divided by this.

    Raises:
        ValueError: `number` is not from 1 to V - 1.
    """
    if not 0 < number < vocabulary:
        raise ValueError(
            f"loss.sampled={number} must be below model.vocab_size={vocabulary}, or 0 for the "
            "softmax over all words"
        )
    times = jax.random.exponential(key, (vocabulary,)) / _share(jnp.arange(vocabulary), vocabulary)
    earliest, words = jax.lax.top_k(-times, number + 1)
    return words[:number], -earliest[number]


def _share(words: Int[Array, "*n"], vocabulary: int) -> Float[Array, "*n"]:
    return jnp.log1p(1 / (words + 1)) / jnp.log(vocabulary + 1.0)


def log_expected(
    words: Int[Array, "*n"], time: Float[Array, ""], *, vocabulary: int
) -> Float[Array, "*n"]:
    """The logarithm of the probability that a word is drawn before a time."""
    return jnp.log(-jnp.expm1(-_share(words, vocabulary) * time))


def sampled(
    key: PRNGKeyArray,
    hidden: Float[Array, "*batch P"],
    targets: Int[Array, "*batch"],
    weights: Num[Array, "*batch"],
    kernel: Float[Array, "V P"],
    bias: Float[Array, " V"],
    *,
    number: int,
) -> LossSums:
    """The cross-entropy of the targets among themselves and `number` words drawn for all of them.

    Jean et al. 2015: each logit is reduced by the logarithm of the probability that its word is
    drawn, so that the sum of exponentials estimates that over the vocabulary. A drawn word is left
    out where it is the target.

    Returns:
        As `losses.cross_entropy`, of which it is an estimate.

    Raises:
        ValueError: as `draw`.
    """
    vocabulary = kernel.shape[0]
    words, time = draw(key, vocabulary=vocabulary, number=number)

    def offsets(ids: Array) -> Array:
        return jnp.take(bias, ids).astype(jnp.float32) - log_expected(
            ids, time, vocabulary=vocabulary
        )

    others = to_vocabulary(hidden, jnp.take(kernel, words, axis=0), offsets(words))
    others = jnp.where(words == targets[..., None], _NEVER, others)
    own = jnp.take(kernel, targets, axis=0).astype(jnp.float32)
    right = jnp.sum(hidden.astype(jnp.float32) * own, axis=-1) + offsets(targets)
    logits = jnp.concatenate([right[..., None], others], axis=-1)
    return cross_entropy(logits, jnp.zeros_like(targets), weights)


def full(
    hidden: Float[Array, "B T P"],
    targets: Int[Array, "B T"],
    weights: Num[Array, "B T"],
    kernel: Float[Array, "V P"],
    bias: Float[Array, " V"],
) -> LossSums:
    """The cross-entropy over all V words, with the logits of one of the T places at a time."""

    @jax.checkpoint
    def place(x: Array, target: Array, weight: Array) -> LossSums:
        return cross_entropy(to_vocabulary(x, kernel, bias), target, weight)

    xs = tuple(jnp.moveaxis(one, 1, 0) for one in (hidden, targets, weights))
    _, sums = jax.lax.scan(lambda _, now: (None, place(*now)), None, xs)
    return jax.tree.map(jnp.sum, sums)
