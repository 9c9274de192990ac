"""Language modeling of whole documents: perplexity, and bits per byte for any vocabulary.

Radford et al. 2019, section 3.1: models with different vocabularies compare by the likelihood of a
text for each of its bytes, characters or words, which do not depend on its tokenization.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like.evaluation.intervals import Statistics
from t5x_like.evaluation.measure import Measured, Row, RowMeasure, text_of
from t5x_like.inference.likelihood import Pair
from t5x_like.inference.text_model import TextModel


@dataclasses.dataclass(frozen=True)
class Documents(RowMeasure):
    """The likelihood of documents (field `text`), each read from its own beginning.

    A document that is longer than a row is read in windows. The first begins with the start token,
    each later window with the tokens before it. With `stride` s a later window scores s tokens
    after all that a row has room for: a small stride gives every token a long context, and takes
    length / s times as long.

    Attributes:
        stride: tokens from a window to the next; 0: the length of a row, so that none overlap.
        end: score the end token too, for a model that was trained to predict where documents end.
    """

    stride: int = 0
    end: bool = True

    def directions(self) -> Mapping[str, bool]:
        """See `Measure`."""
        return dict.fromkeys(
            ("perplexity", "bits_per_byte", "bits_per_character", "word_perplexity"), True
        )

    def measure(self, model: TextModel, rows: Sequence[Row]) -> Measured:
        """`perplexity` of a token, `bits_per_byte`, `bits_per_character`, `word_perplexity`.

        Raises:
            ValueError: a stride out of range, no text, or a model that has an encoder.
        """
        if model.encodes:
            raise ValueError(
                "the measure documents needs a decoder-only language model, without an encoder"
            )
        texts = [text for row in rows if (text := text_of(row, "text")).strip()]
        if not texts:
            raise ValueError("there is no document with a text")
        start = model.prompt_format.start
        assert start is not None  # a config's converter has one
        sizes = {"start": start, "length": model.length, "stride": self.stride}
        cut = [windows(model.tokens(text, end=self.end), **sizes) for text in texts]
        scorer = model.without_start()
        scores = iter(scorer.score_tokens([pair for own in cut for pair in own]))
        counts: list[list[float]] = []
        predicted: list[dict[str, Any]] = []
        for text, own in zip(texts, cut, strict=True):
            parts = [next(scores) for _ in own]
            total = sum(part.total for part in parts)
            number = sum(part.tokens for part in parts)
            predicted.append({"text": text, "log_prob": total, "tokens": number})
            counts.append([-total, number, len(text.encode()), len(text), len(text.split())])
        statistics = Statistics(np.array(counts, float), rates)
        counted = {"documents": len(texts), "tokens": sum(one["tokens"] for one in predicted)}
        return statistics.estimates() | counted, predicted


def windows(tokens: Sequence[int], *, start: int, length: int, stride: int) -> list[Pair]:
    """Split a document into windows, in which each token is scored once.

    They are the windows of lm-eval (`get_rolling_token_windows`), whose `context_len` is length -
    stride + 1: a window reads `length` tokens, the last of them not scored before.

    Args:
        start: what is read before the document.
        length: tokens of a row at most.
        stride: see `Documents`; 0 for `length`.

    Raises:
        ValueError: a stride that leaves tokens out.
    """
    step = stride or length
    if not 0 < step <= length:
        raise ValueError(f"documents.stride={stride} must be from 1 to {length}, or 0 for {length}")
    pairs = [Pair([start], tokens[:length])] if tokens else []
    for done in range(length, len(tokens), step):
        last = min(done + step, len(tokens))
        pairs.append(Pair(tokens[last - length - 1 : done], tokens[done:last]))
    return pairs


def rates(counts: Float[np.ndarray, "N 5"]) -> dict[str, float]:
    """Negative log-likelihoods for each token, byte, character and word.

    Args:
        counts: of each document its nats, and its tokens, bytes of UTF-8, characters and words
            (separated by whitespace), the last three before tokenization.

    Returns:
        `perplexity` of a token, `bits_per_byte`, `bits_per_character`, and `word_perplexity`, exp
        of the nats a word.
    """
    nats, tokens, size, characters, words = counts.sum(axis=0).tolist()
    bits = nats / math.log(2)
    return {
        "perplexity": exp(nats / tokens),
        "bits_per_byte": bits / size,
        "bits_per_character": bits / characters,
        "word_perplexity": exp(nats / words),
    }


def exp(value: float) -> float:
    """The exponential, infinite where it overflows a float."""
    return math.exp(value) if value < 700 else math.inf
