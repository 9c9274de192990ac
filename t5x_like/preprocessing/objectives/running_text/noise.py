"""Noise masks of a chunk: numbers fixed by its length, places sampled at random."""

from typing import NamedTuple

import seqio
import tensorflow as tf

Seed = tuple[tf.Tensor, tf.Tensor]


class SpanCounts(NamedTuple):
    """The number of noise tokens of a chunk, and the number of spans."""

    tokens: int
    spans: int


def check_rate(objective: str, *, rate: float) -> None:
    """Raises ValueError unless `rate`, the share of noise tokens, lies between 0 and 1."""
    if not 0 < rate < 1:
        raise ValueError(f"{objective}: rate must lie between 0 and 1, exclusive, got {rate}")


def check_shares(objective: str, *, random_rate: float, kept_rate: float) -> None:
    """Raises ValueError unless the two are shares of the noise that sum to at most 1."""
    if random_rate < 0 or kept_rate < 0 or random_rate + kept_rate > 1:
        raise ValueError(
            f"{objective}: random_rate and kept_rate are shares of the noise, 0 or more and "
            f"together at most 1, got {random_rate} and {kept_rate}"
        )


def check_spans(objective: str, *, rate: float, mean_span: float) -> None:
    """Raises ValueError where no mask has this rate and mean span length, in tokens."""
    check_rate(objective, rate=rate)
    if not mean_span >= 1:
        raise ValueError(f"{objective}: mean_span must be 1 token or more, got {mean_span}")
    if mean_span * (1 - rate) < rate:
        raise ValueError(
            f"{objective}: at rate {rate} spans of {mean_span} tokens cannot all be kept apart; "
            f"use a mean_span of {rate / (1 - rate):.6g} or more, or a lower rate"
        )


def noise_count(length: int, *, rate: float) -> int:
    """Noise tokens of `length` tokens: the rounded share, at least one, never all of them."""
    return max(0, min(max(round(length * rate), 1), length - 1))


def span_counts(length: int, *, rate: float, mean_span: float) -> SpanCounts:
    """Noise tokens and spans of `length` tokens, both rounded (to even on a tie), as T5's."""
    tokens = noise_count(length, rate=rate)
    spans = min(max(round(tokens / mean_span), 1), tokens, length - tokens)
    return SpanCounts(tokens=tokens, spans=spans)


def random_spans_mask(
    length: tf.Tensor, *, tokens: tf.Tensor, spans: tf.Tensor, seeds: tuple[Seed, Seed]
) -> tf.Tensor:
    """Sample noise in spans: kept and noise spans alternate, first a kept one, last a noise one.

    All such masks with these numbers of tokens and spans are equally likely, as in T5's code
    (section 3.3.4).

    Args:
        length: int32 scalar, tokens of the chunk.
        tokens: int32 scalar below `length`, the noise tokens.
        spans: int32 scalar, at most `tokens` and at most `length - tokens`.
        seeds: one for the kept spans and one for the noise spans.

    Returns:
        bool [length], True on noise; all False if `tokens` is 0.
    """
    kept = _random_ends(length - tokens, parts=spans, seed=seeds[0])
    noise = _random_ends(tokens, parts=spans, seed=seeds[1])
    places = tf.range(length)
    # A token is noise where more kept spans than noise spans have ended before it.
    kept_over = tf.searchsorted(kept + tf.concat([[0], noise[:-1]], axis=0), places, side="right")
    noise_over = tf.searchsorted(kept + noise, places, side="right")
    return kept_over > noise_over


def roll_mask(mask: tf.Tensor, *, seed: Seed) -> tf.Tensor:
    """Shift a mask around by a random number of places: bool [L] -> bool [L].

    Every place is then noise equally often, where `random_spans_mask` has kept text first and noise
    last: T5's code has it as `random_roll`, for rows with few spans. A span that is shifted over
    the end is in two parts, at the end and at the start.
    """
    length = tf.size(mask)
    places = tf.random.stateless_uniform(
        [], seed, minval=0, maxval=tf.maximum(length, 1), dtype=tf.int32
    )
    return tf.roll(mask, places, axis=0)


def _random_ends(total: tf.Tensor, *, parts: tf.Tensor, seed: Seed) -> tf.Tensor:
    """The ends of the parts of a random partition of `total` tokens: int32 [parts], ascending.

    All partitions into this many non-empty parts are equally likely: a choice of parts - 1 among
    total - 1 places. The last end is `total`, also for no parts.
    """
    draws = tf.random.stateless_uniform([tf.maximum(total - 1, 0)], seed)
    cuts = tf.math.top_k(draws, tf.maximum(parts - 1, 0), sorted=False).indices + 1
    return tf.concat([tf.sort(cuts), [total]], axis=0)


def random_tokens_mask(length: tf.Tensor, *, tokens: tf.Tensor, seed: Seed) -> tf.Tensor:
    """Exactly `tokens` noise tokens, all subsets equally likely: bool [length].

    This is i.i.d. noise conditioned on its total, so that lengths do not vary between chunks.
    """
    return seqio.stateless_shuffle(tf.range(length) < tokens, seed)


def random_prefix_mask(length: tf.Tensor, *, seed: Seed) -> tf.Tensor:
    """A prefix of 1 to length - 1 tokens, uniformly, or empty if length < 2: bool [length]."""
    prefix = tf.random.stateless_uniform(
        [],
        seed,
        minval=tf.clip_by_value(length - 1, 0, 1),
        maxval=tf.maximum(length, 1),
        dtype=tf.int32,
    )
    return tf.range(length) < prefix
