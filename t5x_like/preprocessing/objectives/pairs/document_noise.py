"""BART's corruptions: a text in, a corrupted text out, in any order (Lewis et al. 2019, 2.2)."""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Bool, Int

from t5x_like.preprocessing.objectives.running_text.noise import check_rate, noise_count


@dataclasses.dataclass(frozen=True)
class Text:
    """Tokens without special tokens, at least one.

    Attributes:
        sentences: the number of the sentence that each token is of, from 0 on; a mask in place of
            some tokens is of the first one's, or of that of the token after it.
    """

    tokens: Int[np.ndarray, "L"]
    sentences: Int[np.ndarray, "L"]

    def take(self, places: Int[np.ndarray, "K"]) -> "Text":
        """The tokens at some places, in that order."""
        return Text(self.tokens[places], self.sentences[places])


# (random numbers, text, id of the mask) -> text.
Corruption = Callable[[np.random.Generator, Text, int], Text]


def token_masking(*, rate: float) -> Corruption:
    """Random tokens become masks, all of them: "A [MASK] C . [MASK] E ."."""

    def corrupt(generator: np.random.Generator, text: Text, mask: int) -> Text:
        return Text(np.where(_some(generator, text, rate), mask, text.tokens), text.sentences)

    return corrupt


def token_deletion(*, rate: float) -> Corruption:
    """Random tokens are taken out without a trace: "A C . E ."."""

    def corrupt(generator: np.random.Generator, text: Text, mask: int) -> Text:
        del mask
        return text.take(np.flatnonzero(~_some(generator, text, rate)))

    return corrupt


def text_infilling(*, rate: float, mean_span: float) -> Corruption:
    """Spans of Poisson lengths become one mask each: "A [MASK] D [MASK] E .".

    A span of length 0 is a mask between two tokens. All places for the spans among the tokens that
    are kept are equally likely, also next to each other.
    """

    def corrupt(generator: np.random.Generator, text: Text, mask: int) -> Text:
        noise = noise_count(len(text.tokens), rate=rate)
        lengths = span_lengths(generator, tokens=noise, mean=mean_span)
        # One size for each kept token and each span, in their new order.
        sizes = np.ones(len(text.tokens) - noise + len(lengths), np.int64)
        spans = generator.choice(len(sizes), size=len(lengths), replace=False)
        sizes[spans] = lengths
        starts = np.cumsum(sizes) - sizes
        # A span of length 0 at the end stands before no token.
        found = text.take(np.minimum(starts, len(text.tokens) - 1))
        found.tokens[spans] = mask
        return found

    return corrupt


def span_lengths(
    generator: np.random.Generator, *, tokens: int, mean: float
) -> Int[np.ndarray, "S"]:
    """Poisson lengths, also of 0, until they have so many tokens; the last one is cut to fit."""
    drawn = np.zeros(0, np.int64)
    while drawn.sum() < tokens:
        drawn = np.concatenate([drawn, generator.poisson(mean, size=tokens)])
    ends = np.cumsum(drawn)
    number = int(np.searchsorted(ends, tokens)) + 1 if tokens else 0
    lengths = drawn[:number]
    lengths[-1:] -= ends[number - 1 : number] - tokens
    return lengths


def sentence_permutation() -> Corruption:
    """The sentences in random order: "D E . A B C ."."""

    def corrupt(generator: np.random.Generator, text: Text, mask: int) -> Text:
        del mask
        order = generator.permutation(text.sentences.max() + 1)
        return text.take(np.argsort(order[text.sentences], kind="stable"))

    return corrupt


def document_rotation() -> Corruption:
    """The text from a random token on, then what was before it: "C . D E . A B"."""

    def corrupt(generator: np.random.Generator, text: Text, mask: int) -> Text:
        del mask
        size = len(text.tokens)
        return text.take((generator.integers(size) + np.arange(size)) % size)

    return corrupt


def corruptions(name: str, *, rate: float, mean_span: float) -> Mapping[str, Corruption]:
    """All five by their names.

    Args:
        name: of the objective, for messages.
        rate: share of the tokens that are masked, deleted or in spans, rounded for each text.
        mean_span: mean length of the spans of text infilling, in tokens.

    Raises:
        ValueError: `rate` or `mean_span` out of range.
    """
    check_rate(name, rate=rate)
    # Shorter ones would put more masks into a text than they take tokens out of it.
    if not mean_span >= 1:
        raise ValueError(f"{name}: mean_span={mean_span} must be 1 token or more")
    return {
        "token_masking": token_masking(rate=rate),
        "token_deletion": token_deletion(rate=rate),
        "text_infilling": text_infilling(rate=rate, mean_span=mean_span),
        "sentence_permutation": sentence_permutation(),
        "document_rotation": document_rotation(),
    }


def _some(generator: np.random.Generator, text: Text, rate: float) -> Bool[np.ndarray, "L"]:
    """Exactly the rounded share of the tokens, every choice of them equally likely."""
    size = len(text.tokens)
    chosen = np.zeros(size, bool)
    chosen[generator.choice(size, size=noise_count(size, rate=rate), replace=False)] = True
    return chosen
