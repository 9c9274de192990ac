"""Extractive question answering: the best span of a text of limited length, or no answer."""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class AnswerSpans(NamedTuple):
    """The best span of each row and its score, and the score of no answer.

    Attributes:
        start, end: positions of the first and of the last token of the span.
        score: the sum of their logits; if no span is allowed, -inf, and both positions are 0.
        null_score: the sum of both logits at the null position; -inf without null positions.
    """

    start: Int[Array, " B"]
    end: Int[Array, " B"]
    score: Float[Array, " B"]
    null_score: Float[Array, " B"]


def best_spans(
    start_logits: Float[Array, "B L"],
    end_logits: Float[Array, "B L"],
    *,
    allowed: Bool[Array, "B L"],
    max_length: int,
    null_positions: Int[Array, " B"] | None,
    parts: Int[Array, "B L"] | None = None,
) -> AnswerSpans:
    """Find the span start <= end with the largest start_logits[start] + end_logits[end].

    This is the prediction of Devlin et al. 2019, section 4.2 for SQuAD and section 4.3 for SQuAD
    2.0: there is an answer if `score > null_score + threshold`, with a threshold chosen on held-out
    data.

    Args:
        allowed: the positions that may be part of an answer: the tokens of the text, but not the
            question, special tokens or padding.
        max_length: the largest number of tokens of an answer.
        null_positions: the position of the token that stands for no answer, usually [CLS], which
            is never part of an answer; None if every question has an answer.
        parts: the number of each position's part, such as a sentence, that an answer may not leave;
            None if it may.

    Returns:
        The best spans; ties go to the lowest start, then to the lowest end.

    Raises:
        ValueError: shapes differ, or max_length is below 1.
    """
    length = start_logits.shape[-1]
    if not start_logits.shape == end_logits.shape == allowed.shape:
        raise ValueError(
            f"start_logits {start_logits.shape}, end_logits {end_logits.shape} and allowed "
            f"{allowed.shape} must have the same shape"
        )
    if max_length < 1:
        raise ValueError(f"max_length={max_length}: must be 1 or more, the tokens of an answer")
    start_logits, end_logits, allowed = map(jnp.asarray, (start_logits, end_logits, allowed))
    null_score = jnp.full(start_logits.shape[:1], -jnp.inf)
    if null_positions is not None:
        rows = jnp.arange(len(start_logits))
        allowed = allowed.at[rows, null_positions].set(False)
        null_score = (start_logits + end_logits)[rows, null_positions]
    # One column per span length, [B, L, max_length]: all pairs of positions would be [B, L, L].
    longest = min(max_length, length)
    ends = jnp.arange(length)[:, None] + jnp.arange(longest)
    inside = ends < length
    ends = jnp.minimum(ends, length - 1)
    inside = allowed[:, ends] & inside
    if parts is not None:
        inside &= parts[:, ends] == parts[:, :, None]
    valid = jnp.cumprod(inside, axis=-1).astype(bool)
    scores = jnp.where(valid, start_logits[:, :, None] + end_logits[:, ends], -jnp.inf)
    flat = scores.reshape(scores.shape[0], -1)
    start, extra = jnp.divmod(jnp.argmax(flat, axis=1), longest)
    return AnswerSpans(start, start + extra, jnp.max(flat, axis=1), null_score)


@dataclasses.dataclass(frozen=True)
class Answer:
    """The predicted answer to a question, from all parts of its context.

    Attributes:
        text: the best answer.
        null_margin: the score of no answer minus the score of the best answer, in nats; above a
            threshold, no answer is predicted. Infinite, in JSON null, if the context has no word.
    """

    text: str
    null_margin: float

    def under(self, threshold: float) -> str:
        """Return the answer at this threshold; "" for no answer."""
        return "" if self.null_margin > threshold else self.text


def join(parts: Iterable[tuple[str, float, float]]) -> Answer:
    """Combine the predictions for the parts of one question's context.

    The answer is the best of all parts. The score of no answer is the lowest of all parts, as in
    BERT's code for SQuAD 2.0, since a part without the answer rightly predicts no answer even if
    another part contains it.

    Args:
        parts: (best answer, its score, score of no answer) for each part.
    """
    texts, scores, null_scores = zip(*parts, strict=True)
    best = max(range(len(texts)), key=lambda part: scores[part])
    return Answer(texts[best], min(null_scores) - scores[best])
