"""Count the noise tokens and spans of a chunk, fixed by its length, for any sampling of them."""

from collections.abc import Callable
from typing import NamedTuple

from t5x_like.objectives.chunk_lengths import Sizes


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
