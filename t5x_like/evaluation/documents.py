"""Language modeling of whole documents: perplexity, and bits per byte for any vocabulary.

Radford et al. 2019, section 3.1: models with different vocabularies can be compared by the
likelihood of a text per byte, character or word, since these do not depend on the tokenization.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like.evaluation.measure import Measured, Row, RowMeasure, text_of
from t5x_like.evaluation.metrics.metric import Statistics
from t5x_like.inference.likelihood import TokenPair
from t5x_like.inference.text_model import TextModel


@dataclasses.dataclass(frozen=True)
class Documents(RowMeasure):
    """The likelihood of documents (field `text`), each read from its beginning.

    A document longer than a row is read in windows. The first window starts with the start token,
    each later window with the tokens before it. With `stride` s a later window scores only its last
    s tokens: a small stride gives every token a long context, and takes length / s times as long.

    A network with a memory (Transformer-XL) reads a document in rows of s tokens instead, each with
    the memory of the rows before it (Dai et al. 2019, section 4.1).

    Attributes:
        stride: tokens from a window to the next, or of a row with a memory; 0: the length of a row,
            so that the scored parts do not overlap.
        end: whether to score the end token too, for a model that was trained to predict it.
    """

    stride: int = 0
    end: bool = True

    def directions(self) -> Mapping[str, bool]:
        """See `Measure`."""
        return dict.fromkeys(
            ("perplexity", "bits_per_byte", "bits_per_character", "word_perplexity", "excess_nats"),
            True,
        )

    def measure(self, model: TextModel, rows: Sequence[Row]) -> Measured:
        """Return `perplexity` per token, `bits_per_byte`, `bits_per_character`, `word_perplexity`.

        With `nats` in the rows also `nats_per_word`, `least_nats_per_word` (the language's), and
        their difference `excess_nats`.

        Raises:
            ValueError: the stride is out of range, all texts are empty, or the model has an
                encoder.
        """
        if model.answers:
            raise ValueError(
                "the measure documents needs a decoder-only language model, without an encoder"
            )
        rows = [row for row in rows if text_of(row, "text").strip()]
        texts = [text_of(row, "text") for row in rows]
        if not texts:
            raise ValueError("there is no document with a text")
        counts: list[list[float]] = []
        predicted: list[dict[str, Any]] = []
        for text, (total, number) in zip(texts, self._scores(model, texts), strict=True):
            predicted.append({"text": text, "log_prob": total, "tokens": number})
            counts.append([-total, number, len(text.encode()), len(text), len(text.split())])
        known = all("nats" in row for row in rows)
        if known:
            counts = [
                [*row_counts, row["nats"]] for row_counts, row in zip(counts, rows, strict=True)
            ]
        statistics = Statistics(np.array(counts, float), rates)
        counted = {"documents": len(texts), "tokens": sum(row["tokens"] for row in predicted)}
        return statistics.estimates() | counted, predicted

    def _scores(self, model: TextModel, texts: Sequence[str]) -> list[tuple[float, int]]:
        """Return the log probability of each text, and its number of tokens."""
        documents = [model.tokens(text, end=self.end) for text in texts]
        step = check_stride(self.stride, length=model.length)
        if model.has_memory:
            by_document = model.score_documents(documents, length=step)
            return [
                (float(np.sum(document_scores, dtype=np.float64)), len(document_scores))
                for document_scores in by_document
            ]
        start = model.prompt_format.start
        assert start is not None  # every config's converter has a start token
        sizes = {"start": start, "length": model.length, "stride": self.stride}
        cut = [windows(tokens, **sizes) for tokens in documents]
        scorer = model.without_start()
        scores = iter(
            scorer.score_tokens([pair for document_windows in cut for pair in document_windows])
        )
        parts = [[next(scores) for _ in document_windows] for document_windows in cut]
        return [
            (
                sum(score.total for score in scored_windows),
                sum(score.tokens for score in scored_windows),
            )
            for scored_windows in parts
        ]


def check_stride(stride: int, *, length: int) -> int:
    """Return the stride of windows, `length` for 0.

    Raises:
        ValueError: the stride would leave tokens out.
    """
    step = stride or length
    if not 0 < step <= length:
        raise ValueError(f"documents.stride={stride} must be from 1 to {length}, or 0 for {length}")
    return step


def windows(tokens: Sequence[int], *, start: int, length: int, stride: int) -> list[TokenPair]:
    """Split a document into windows, in which each token is scored once.

    They equal lm-eval's windows (`get_rolling_token_windows`) with `context_len` = length - stride
    + 1: a window reads `length` tokens; the last tokens have not been scored before.

    Args:
        tokens: the document.
        start: the token read before the document.
        length: maximum tokens of a row.
        stride: see `Documents`; 0 for `length`.

    Raises:
        ValueError: see `check_stride`.
    """
    step = check_stride(stride, length=length)
    pairs = [TokenPair([start], tokens[:length])] if tokens else []
    for done in range(length, len(tokens), step):
        last = min(done + step, len(tokens))
        pairs.append(TokenPair(tokens[last - length - 1 : done], tokens[done:last]))
    return pairs


def rates(counts: Float[np.ndarray, "N 5..6"]) -> dict[str, float]:
    """Return negative log-likelihoods per token, byte, character and word.

    Args:
        counts: for each document its nats, tokens, UTF-8 bytes, characters and words (separated by
            whitespace), the last three of the text before tokenization; and its nats under the
            language, if they are known.

    Returns:
        `perplexity` per token, `bits_per_byte`, `bits_per_character`, and `word_perplexity`, the
        exponential of the nats per word; for a known language the numbers of `Documents.measure`.
    """
    nats, tokens, size, characters, words, *least = counts.sum(axis=0).tolist()
    bits = nats / math.log(2)
    of_language = {}
    if least:
        [best] = least
        of_language = {
            "nats_per_word": nats / words,
            "least_nats_per_word": best / words,
            "excess_nats": (nats - best) / words,
        }
    return of_language | {
        "perplexity": exp(nats / tokens),
        "bits_per_byte": bits / size,
        "bits_per_character": bits / characters,
        "word_perplexity": exp(nats / words),
    }


def exp(value: float) -> float:
    """Return the exponential, infinite if it overflows a float."""
    return math.exp(value) if value < 700 else math.inf
