"""Sample noise masks of a chunk: fixed numbers of tokens and spans, at random positions."""

import seqio
import tensorflow as tf

Seed = tuple[tf.Tensor, tf.Tensor]


def random_spans_mask(
    length: tf.Tensor, *, tokens: tf.Tensor, spans: tf.Tensor, seeds: tuple[Seed, Seed]
) -> tf.Tensor:
    """Sample noise in spans: kept and noise spans alternate, beginning with a kept span.

    All such masks with these numbers of tokens and spans are equally likely, as in T5's code
    (section 3.3.4); each ends with a noise span.

    Args:
        length: int32 scalar, tokens of the chunk.
        tokens: int32 scalar below `length`, the noise tokens.
        spans: int32 scalar, at most `tokens` and at most `length - tokens`.
        seeds: one seed for the kept spans and one for the noise spans.

    Returns:
        bool [length], True on noise; all False if `tokens` is 0.
    """
    kept = _random_ends(length - tokens, parts=spans, seed=seeds[0])
    noise = _random_ends(tokens, parts=spans, seed=seeds[1])
    places = tf.range(length)
    # A token is noise if more kept spans than noise spans have ended before it.
    kept_over = tf.searchsorted(kept + tf.concat([[0], noise[:-1]], axis=0), places, side="right")
    noise_over = tf.searchsorted(kept + noise, places, side="right")
    return kept_over > noise_over


def roll_mask(mask: tf.Tensor, *, seed: Seed) -> tf.Tensor:
    """Rotate a mask by a random number of positions: bool [L] -> bool [L].

    Every position is then equally often noise, whereas `random_spans_mask` always has kept text
    first and noise last: T5's `random_roll`, for rows with few spans. A span that is shifted across
    the end is in two parts, at the end and at the start.
    """
    length = tf.size(mask)
    places = tf.random.stateless_uniform(
        [], seed, minval=0, maxval=tf.maximum(length, 1), dtype=tf.int32
    )
    return tf.roll(mask, places, axis=0)


def _random_ends(total: tf.Tensor, *, parts: tf.Tensor, seed: Seed) -> tf.Tensor:
    """Return the ends of the parts of a random partition of `total` tokens: int32 [parts], sorted.

    All partitions into this many non-empty parts are equally likely: a choice of parts - 1 among
    total - 1 positions. The last end is `total`, even if `parts` is 0.
    """
    draws = tf.random.stateless_uniform([tf.maximum(total - 1, 0)], seed)
    cuts = tf.math.top_k(draws, tf.maximum(parts - 1, 0), sorted=False).indices + 1
    return tf.concat([tf.sort(cuts), [total]], axis=0)


def random_tokens_mask(length: tf.Tensor, *, tokens: tf.Tensor, seed: Seed) -> tf.Tensor:
    """Sample exactly `tokens` noise tokens, all subsets equally likely: bool [length].

    This is i.i.d. noise conditioned on its total, so that lengths do not vary between chunks.
    """
    return seqio.stateless_shuffle(tf.range(length) < tokens, seed)


def random_prefix_mask(length: tf.Tensor, *, seed: Seed) -> tf.Tensor:
    """Sample a prefix of 1 to length - 1 tokens, empty if length < 2: bool [length]."""
    prefix = tf.random.stateless_uniform(
        [],
        seed,
        minval=tf.clip_by_value(length - 1, 0, 1),
        maxval=tf.maximum(length, 1),
        dtype=tf.int32,
    )
    return tf.range(length) < prefix
