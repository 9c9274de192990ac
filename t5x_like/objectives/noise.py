"""The noise of chunks: the number of tokens and spans, their masks, and how they are written.

The numbers are fixed by the length of a chunk; the positions are random. Everything is for B chunks
of one length L at once.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from t5x_like.objectives.chunks import Ragged, Sizes, Tokens
from t5x_like.vocabularies import Vocabulary

Mask = Bool[np.ndarray, "B L"]


class SpanCounts(NamedTuple):
    """The number of noise tokens of a chunk, and the number of spans."""

    tokens: int
    spans: int


def check_rate(objective: str, *, rate: float) -> None:
    """Raise ValueError unless `rate`, the share of noise tokens, lies between 0 and 1."""
    if not 0 < rate < 1:
        raise ValueError(f"{objective}: rate must lie between 0 and 1, exclusive, got {rate}")


def check_shares(objective: str, *, random_rate: float, kept_rate: float) -> None:
    """Raise ValueError unless the two are shares of the noise that sum to at most 1."""
    if random_rate < 0 or kept_rate < 0 or random_rate + kept_rate > 1:
        raise ValueError(
            f"{objective}: random_rate and kept_rate are shares of the noise, 0 or more and "
            f"together at most 1, got {random_rate} and {kept_rate}"
        )


def check_spans(objective: str, *, rate: float, mean_span: float) -> None:
    """Raise ValueError if no mask has this rate and mean span length, in tokens."""
    check_rate(objective, rate=rate)
    if not mean_span >= 1:
        raise ValueError(f"{objective}: mean_span must be 1 token or more, got {mean_span}")
    if mean_span * (1 - rate) < rate:
        raise ValueError(
            f"{objective}: at rate {rate} spans of {mean_span} tokens cannot all be kept apart; "
            f"use a mean_span of {rate / (1 - rate):.6g} or more, or a lower rate"
        )


def noise_count(length: int, *, rate: float) -> int:
    """Return the noise tokens of `length` tokens: the rounded share, from 1 to `length` - 1."""
    return max(0, min(max(round(length * rate), 1), length - 1))


def span_counts(length: int, *, rate: float, mean_span: float) -> SpanCounts:
    """Return the noise tokens and spans of `length` tokens, both rounded half to even, as in T5."""
    tokens = noise_count(length, rate=rate)
    spans = min(max(round(tokens / mean_span), 1), tokens, length - tokens)
    return SpanCounts(tokens=tokens, spans=spans)


def span_sizes(
    *, rate: float, mean_span: float, final_sentinel: bool, random_roll: bool
) -> Callable[[int], Sizes]:
    """Return a function: raw length -> the most tokens and sentinels after span corruption."""

    def sizes(length: int) -> Sizes:
        tokens, spans = span_counts(length, rate=rate, mean_span=mean_span)
        if random_roll:  # a span of two tokens or more can be at the end and at the start
            spans = min(spans + 1, tokens)
        sentinels = spans + final_sentinel
        return Sizes(
            inputs=length - tokens + spans, targets=tokens + sentinels, sentinels=sentinels
        )

    return sizes


def random_spans_mask(
    generator: np.random.Generator, shape: tuple[int, int], *, tokens: int, spans: int
) -> Mask:
    """Sample noise in spans: kept and noise spans alternate, beginning with a kept span.

    All such masks with these numbers of tokens and spans are equally likely, as in T5's code
    (section 3.3.4); each ends with a noise span.

    Args:
        generator: the source of random numbers.
        shape: (B, L).
        tokens: noise tokens of a chunk, fewer than L.
        spans: at most `tokens` and at most `L - tokens`.

    Returns:
        bool [B, L], True on noise; all False if `tokens` is 0.
    """
    rows, length = shape
    if not tokens:
        return np.zeros(shape, bool)
    sizes = np.empty((rows, 2 * spans), np.int64)
    sizes[:, ::2] = _random_sizes(generator, rows, length - tokens, parts=spans)
    sizes[:, 1::2] = _random_sizes(generator, rows, tokens, parts=spans)
    is_noise = np.tile([False, True], rows * spans)
    return np.repeat(is_noise, sizes.reshape(-1)).reshape(shape)


def _random_sizes(
    generator: np.random.Generator, rows: int, total: int, *, parts: int
) -> Int[np.ndarray, "B parts"]:
    """Return the sizes of random partitions of `total` tokens into non-empty parts.

    All partitions are equally likely: a choice of parts - 1 among total - 1 positions.
    """
    cuts = _random_positions(generator, rows, total - 1, number=parts - 1) + 1
    cuts.sort(axis=1)
    return np.diff(cuts, axis=1, prepend=0, append=total)


def _random_positions(
    generator: np.random.Generator, rows: int, length: int, *, number: int
) -> Int[np.ndarray, "B number"]:
    """Choose `number` different places of each row, all choices equally likely."""
    if not length:
        return np.zeros((rows, 0), np.int64)
    keys = generator.random((rows, length), np.float32)
    return np.argpartition(keys, min(number, length - 1), axis=1)[:, :number]


def roll_mask(generator: np.random.Generator, mask: Mask) -> Mask:
    """Rotate each mask by a random number of positions: bool [B, L] -> bool [B, L].

    Every position is then equally often noise, whereas `random_spans_mask` always has kept text
    first and noise last: T5's `random_roll`, for rows with few spans. A span that is shifted across
    the end is in two parts, at the end and at the start.
    """
    rows, length = mask.shape
    shifts = generator.integers(max(length, 1), size=(rows, 1))
    return np.take_along_axis(mask, (np.arange(length) - shifts) % max(length, 1), axis=1)


def random_tokens_mask(
    generator: np.random.Generator, shape: tuple[int, int], *, tokens: int
) -> Mask:
    """Sample exactly `tokens` noise tokens of each chunk, all subsets equally likely: bool [B, L].

    This is i.i.d. noise conditioned on its total, so that lengths do not vary between chunks.
    """
    mask = np.zeros(shape, bool)
    positions = _random_positions(generator, *shape, number=tokens)
    np.put_along_axis(mask, positions, True, axis=1)
    return mask


def random_prefixes(
    generator: np.random.Generator, shape: tuple[int, int]
) -> Int[np.ndarray, " B"]:
    """Sample the lengths of prefixes: 1 to L - 1 tokens, 0 of a text of one token."""
    rows, length = shape
    return generator.integers(1, length, rows) if length > 1 else np.zeros(rows, np.int64)


def rows_where(values: Tokens, mask: Mask) -> Ragged:
    """Return the tokens of each row where a mask is True."""
    return np.split(values[mask], np.cumsum(mask.sum(axis=1))[:-1])


def spans_to_sentinels(tokens: Tokens, mask: Mask, *, first: int) -> Ragged:
    """Replace each run of noise by one sentinel: "a b c d e" -> "a <X> d <Y>".

    Args:
        tokens: int32 [B, L].
        mask: bool [B, L], True on noise.
        first: id of the first sentinel; the next runs of a row get first - 1, first - 2...

    Returns:
        Rows of L - noise tokens + runs.
    """
    starts, sentinels = _sentinels(mask, first=first)
    return rows_where(np.where(starts, sentinels, tokens), starts | ~mask)


def spans_after_sentinels(
    tokens: Tokens, mask: Mask, *, first: int, final_sentinel: bool
) -> Ragged:
    """Return only the noise, each run after its sentinel: "a b c d e" -> "<X> b c <Y> e".

    For the arguments see `spans_to_sentinels`. `final_sentinel` appends one more sentinel, "<Z>".

    Returns:
        Rows of noise tokens + runs (+ 1).
    """
    starts, sentinels = _sentinels(mask, first=first)
    rows, length = mask.shape
    # Two slots for each token, the sentinel before it and itself; most are dropped.
    slots = np.stack([sentinels, tokens], axis=2).reshape(rows, 2 * length)
    selected = np.stack([starts, mask], axis=2).reshape(rows, 2 * length)
    if final_sentinel:
        last = (first - starts.sum(axis=1, keepdims=True)).astype(np.int32)
        slots, selected = np.hstack([slots, last]), np.hstack([selected, np.ones((rows, 1), bool)])
    return rows_where(slots, selected)


def _sentinels(mask: Mask, *, first: int) -> tuple[Mask, Tokens]:
    """Return bool [B, L], where runs of noise start; and int32 [B, L], their sentinels there."""
    starts = mask.copy()
    starts[:, 1:] &= ~mask[:, :-1]
    return starts, (first + 1 - np.cumsum(starts, axis=1)).astype(np.int32)


def replace_tokens(
    generator: np.random.Generator,
    tokens: Tokens,
    mask: Mask,
    *,
    vocabulary: Vocabulary,
    random_rate: float,
    kept_rate: float,
) -> Tokens:
    """Replace each noise token by a random token, itself, or the mask token: [B, L] -> [B, L].

    Independently for each token: random with probability `random_rate`, itself with `kept_rate`,
    otherwise <M>. Random tokens are uniform over the vocabulary without its three special ids and
    its sentinels (T5's code samples sentinels too).
    """
    mask_token = vocabulary.first_sentinel
    ordinary_end = vocabulary.first_sentinel + 1 - max(vocabulary.extra_ids, 1)
    draw = generator.random(tokens.shape, np.float32)
    random_tokens = generator.integers(3, ordinary_end, tokens.shape, np.int32)
    replaced = np.where(draw < random_rate, random_tokens, np.int32(mask_token))
    return np.where(mask & (draw < 1 - kept_rate), replaced, tokens)
