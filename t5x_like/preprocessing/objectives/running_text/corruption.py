"""Write noise: from tokens and a noise mask to the tokens of one feature."""

import tensorflow as tf

from t5x_like.preprocessing.objectives.running_text.noise import Seed
from t5x_like.vocabularies import Vocabulary


def spans_to_sentinels(tokens: tf.Tensor, mask: tf.Tensor, *, first: int) -> tf.Tensor:
    """Replace each run of noise by one sentinel: "a b c d e" -> "a <X> d <Y>".

    Args:
        tokens: int32 [L].
        mask: bool [L], True on noise.
        first: id of the first sentinel; the next runs get first - 1, first - 2...

    Returns:
        int32 [L - noise tokens + runs].
    """
    starts, sentinels = _sentinels(mask, first=first)
    return tf.boolean_mask(tf.where(starts, sentinels, tokens), starts | ~mask)


def spans_after_sentinels(
    tokens: tf.Tensor, mask: tf.Tensor, *, first: int, final_sentinel: bool
) -> tf.Tensor:
    """Return only the noise, each run after its sentinel: "a b c d e" -> "<X> b c <Y> e".

    For the arguments see `spans_to_sentinels`. `final_sentinel` appends one more sentinel, "<Z>".

    Returns:
        int32 [noise tokens + runs (+ 1)].
    """
    starts, sentinels = _sentinels(mask, first=first)
    # Two slots for each token, the sentinel before it and itself; most are dropped.
    slots = tf.reshape(tf.stack([sentinels, tokens], axis=1), [-1])
    spans = tf.boolean_mask(slots, tf.reshape(tf.stack([starts, mask], axis=1), [-1]))
    if not final_sentinel:
        return spans
    return tf.concat([spans, [first - tf.math.count_nonzero(starts, dtype=tf.int32)]], axis=0)


def _sentinels(mask: tf.Tensor, *, first: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return bool [L], True where a run of noise starts; and int32 [L], there the sentinel."""
    starts = mask & ~tf.concat([[False], mask[:-1]], axis=0)
    return starts, first + 1 - tf.cumsum(tf.cast(starts, tf.int32))


def mask_tokens(tokens: tf.Tensor, mask: tf.Tensor, *, mask_token: int) -> tf.Tensor:
    """Replace every noise token by `mask_token`: [L] -> [L]."""
    return tf.where(mask, mask_token, tokens)


def replace_tokens(
    tokens: tf.Tensor,
    mask: tf.Tensor,
    *,
    vocabulary: Vocabulary,
    random_rate: float,
    kept_rate: float,
    seeds: tuple[Seed, Seed],
) -> tf.Tensor:
    """Replace each noise token by a random token, itself, or the mask token: [L] -> [L].

    Independently for each token: random with probability `random_rate`, itself with `kept_rate`,
    otherwise <M>. Random tokens are uniform over the vocabulary without its three special ids and
    its sentinels (T5's code samples sentinels too).
    """
    mask_token = vocabulary.first_sentinel
    ordinary_end = vocabulary.first_sentinel + 1 - max(vocabulary.extra_ids, 1)
    draw = tf.random.stateless_uniform(tf.shape(tokens), seeds[0])
    random_tokens = tf.random.stateless_uniform(
        tf.shape(tokens), seeds[1], minval=3, maxval=ordinary_end, dtype=tf.int32
    )
    replaced = tf.where(draw < random_rate, random_tokens, mask_token)
    return tf.where(mask & (draw < 1 - kept_rate), replaced, tokens)
