"""Language modelling of whole documents: perplexity, and bits per byte whatever the tokens are.

Radford et al. 2019, section 3.1: the likelihood of a text does not depend on how it is cut into
tokens, so that models with other vocabularies compare by bytes, characters or words of the text.
"""

import dataclasses
import math
from collections.abc import Sequence

from t5x_like.evaluation.interface import Measured, Row, TextModel, text_of
from t5x_like.inference.likelihood import Pair


@dataclasses.dataclass(frozen=True)
class Documents:
    """The likelihood of documents (field `text`), each read from its own beginning.

    A document that is longer than a row is read in windows. With `stride` s each window begins s
    tokens after the one before, and only tokens that no earlier window had count in it: a small
    stride gives every token a long context, and takes length / s times as long.

    Attributes:
        stride: tokens from a window to the next; 0: as many as a row has, so that none overlap.
        end: the end token counts as a token of the document, which it is to a model that learned
            where documents end.
    """

    stride: int = 0
    end: bool = True

    def measure(self, model: TextModel, rows: Sequence[Row]) -> Measured:
        """`perplexity` of a token, `bits_per_byte`, `bits_per_character`, `word_perplexity`.

        Raises:
            ValueError: a stride out of range, no text, or a model that has an encoder.
        """
        if model.encodes:
            raise ValueError("score.kind='documents' is for a language model, without an encoder")
        texts = [text for row in rows if (text := text_of(row, "text")).strip()]
        if not texts:
            raise ValueError("there is no document with a text")
        cut = [
            windows(model.tokens(text, end=self.end), length=model.length, stride=self.stride)
            for text in texts
        ]
        scores = iter(model.score_tokens([pair for own in cut for pair in own]))
        log_probs, tokens, said = 0.0, 0, []
        for text, own in zip(texts, cut, strict=True):
            parts = [next(scores) for _ in own]
            total = sum(part.total for part in parts)
            number = sum(part.tokens for part in parts)
            said.append({"text": text, "log_prob": total, "tokens": number})
            log_probs, tokens = log_probs + total, tokens + number
        found = rates(-log_probs, tokens=tokens, texts=texts)
        return found | {"documents": len(texts), "tokens": tokens}, said


def windows(tokens: Sequence[int], *, length: int, stride: int) -> list[Pair]:
    """A document's tokens in rows: each one is a continuation once, after what its row has before.

    Args:
        length: tokens of a row at most.
        stride: see `Documents`.

    Raises:
        ValueError: a stride that would leave tokens out.
    """
    step = stride or length
    if not 0 < step <= length:
        raise ValueError(f"score.stride={stride} must be from 1 to {length}, or 0 for {length}")
    pairs, done = [], 0
    first = 0
    while done < len(tokens):
        last = min(first + length, len(tokens))
        pairs.append(Pair(tokens[first:done], tokens[done:last]))
        done, first = last, first + step
    return pairs


def rates(nats: float, *, tokens: int, texts: Sequence[str]) -> dict[str, float]:
    """What a negative log-likelihood comes to for each token, byte, character and word.

    Args:
        nats: of all the texts together.
        texts: as they were before they were cut into tokens; words stand between blanks.

    Returns:
        `perplexity` of a token, `bits_per_byte` (of UTF-8), `bits_per_character`, and
        `word_perplexity`, the perplexity that the same likelihood is of as many words.
    """
    bits = nats / math.log(2)
    return {
        "perplexity": exp(nats / tokens),
        "bits_per_byte": bits / sum(len(text.encode()) for text in texts),
        "bits_per_character": bits / sum(map(len, texts)),
        "word_perplexity": exp(nats / sum(len(text.split()) for text in texts)),
    }


def exp(value: float) -> float:
    """The exponential, infinite where it is more than a float holds."""
    return math.exp(value) if value < 700 else math.inf
