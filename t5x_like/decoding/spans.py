"""Extractive question answering: the best span of a text under a length limit, or no answer."""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Spans(NamedTuple):
    """The best answer of each row, and how it compares to there being none.

    Attributes:
        start, end: positions of its first and of its last token.
        score: the sum of their logits; -inf, and both positions 0, where no span is allowed.
        null_score: the same sum at the position that stands for no answer; -inf without one.
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
    null_position: int | None = 0,
) -> Spans:
    """Finds start <= end of the largest start_logits[start] + end_logits[end].

    So SQuAD is answered by Devlin et al. 2019, section 4.2, and SQuAD 2.0 by section 4.3: there is
    an answer where `score > null_score + threshold`, the threshold being chosen on held-out data.

    Args:
        allowed: the tokens that an answer may consist of, all of them: those of the text, and not
            of the question, the marks and the padding.
        max_length: the most tokens of an answer.
        null_position: of the token that both logits point at where there is no answer, which is
            never part of one; None where there always is one.

    Returns:
        The spans; of equally good ones that with the lower start, then the lower end.

    Raises:
        ValueError: shapes do not fit, max_length is below 1, or null_position is not in the row.
    """
    length = start_logits.shape[-1]
    if not start_logits.shape == end_logits.shape == allowed.shape:
        raise ValueError(
            f"start_logits {start_logits.shape}, end_logits {end_logits.shape} and allowed "
            f"{allowed.shape} must be of one shape"
        )
    if max_length < 1:
        raise ValueError(f"max_length={max_length}: an answer has 1 token or more")
    start_logits, end_logits, allowed = map(jnp.asarray, (start_logits, end_logits, allowed))
    null_score = jnp.full(start_logits.shape[:1], -jnp.inf)
    if null_position is not None:
        if not 0 <= null_position < length:
            raise ValueError(f"null_position={null_position} is not in a row of {length} tokens")
        allowed = allowed.at[:, null_position].set(False)
        null_score = start_logits[:, null_position] + end_logits[:, null_position]
    # One column for each length: [B, L, K] where all pairs would be [B, L, L].
    longest = min(max_length, length)
    ends = jnp.arange(length)[:, None] + jnp.arange(longest)
    inside = ends < length
    ends = jnp.minimum(ends, length - 1)
    whole = jnp.cumprod(allowed[:, ends] & inside, axis=-1).astype(bool)
    scores = jnp.where(whole, start_logits[:, :, None] + end_logits[:, ends], -jnp.inf)
    flat = scores.reshape(scores.shape[0], -1)
    start, extra = jnp.divmod(jnp.argmax(flat, axis=1), longest)
    return Spans(start, start + extra, jnp.max(flat, axis=1), null_score)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a model says of a question, over all parts of its context.

    Attributes:
        text: the best answer.
        null_margin: by how much the logits of there being none exceed its own, in nats: there is
            none where this is above a threshold.
    """

    text: str
    null_margin: float

    def under(self, threshold: float) -> str:
        """The answer, "" for none."""
        return "" if self.null_margin > threshold else self.text


def join(parts: Iterable[tuple[str, float, float]]) -> Answer:
    """The answer of a question whose context was read in parts.

    The best answer of all parts; that there is none is as likely as where it is least, since a part
    without the answer has none whatever the others have (as in BERT's code for SQuAD 2.0).

    Args:
        parts: of each the best answer, its score, and the score of there being none.
    """
    texts, scores, null_scores = zip(*parts, strict=True)
    best = max(range(len(texts)), key=lambda part: scores[part])
    return Answer(texts[best], min(null_scores) - scores[best])
