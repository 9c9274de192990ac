"""BART's corruptions of a document, composable in any order (Lewis et al. 2019, section 2.2)."""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Bool, Int

from t5x_like.objectives.noise import check_rate, noise_count


@dataclasses.dataclass(frozen=True)
class Text:
    """One or more tokens, without special tokens.

    Attributes:
        sentences: the index of each token's sentence, from 0; a mask that replaces tokens has the
            index of the first replaced token, or, for a span of length 0, of the next token.
    """

    tokens: Int[np.ndarray, " L"]
    sentences: Int[np.ndarray, " L"]

    def take(self, positions: Int[np.ndarray, " K"]) -> "Text":
        """Return the tokens at these positions, in this order."""
        return Text(self.tokens[positions], self.sentences[positions])


# (random generator, text, id of [MASK]) -> text.
Corruption = Callable[[np.random.Generator, Text, int], Text]


def token_masking(*, rate: float) -> Corruption:
    """Replace random tokens by [MASK]: "A [MASK] C . [MASK] E ."."""

    def corrupt(generator: np.random.Generator, text: Text, mask: int) -> Text:
        return Text(np.where(_some(generator, text, rate), mask, text.tokens), text.sentences)

    return corrupt


def token_deletion(*, rate: float) -> Corruption:
    """Delete random tokens: "A C . E ."."""

    def corrupt(generator: np.random.Generator, text: Text, mask: int) -> Text:
        del mask
        return text.take(np.flatnonzero(~_some(generator, text, rate)))

    return corrupt


def text_infilling(*, rate: float, mean_span: float) -> Corruption:
    """Replace spans of Poisson lengths by one [MASK] each: "A [MASK] D [MASK] E .".

    A span of length 0 is a mask between two tokens. All placements of the spans among the kept
    tokens are equally likely, including adjacent spans.
    """

    def corrupt(generator: np.random.Generator, text: Text, mask: int) -> Text:
        noise = noise_count(len(text.tokens), rate=rate)
        lengths = span_lengths(generator, tokens=noise, mean=mean_span)
        # One size for each kept token and each span, in their new order.
        sizes = np.ones(len(text.tokens) - noise + len(lengths), np.int64)
        spans = generator.choice(len(sizes), size=len(lengths), replace=False)
        sizes[spans] = lengths
        starts = np.cumsum(sizes) - sizes
        # A span of length 0 at the end has no next token.
        noisy = text.take(np.minimum(starts, len(text.tokens) - 1))
        noisy.tokens[spans] = mask
        return noisy

    return corrupt


def span_lengths(
    generator: np.random.Generator, *, tokens: int, mean: float
) -> Int[np.ndarray, " S"]:
    """Sample Poisson lengths, including 0, that sum to `tokens`; the last is truncated."""
    sampled = np.zeros(0, np.int64)
    while sampled.sum() < tokens:
        sampled = np.concatenate([sampled, generator.poisson(mean, size=tokens)])
    ends = np.cumsum(sampled)
    number = int(np.searchsorted(ends, tokens)) + 1 if tokens else 0
    lengths = sampled[:number]
    lengths[-1:] -= ends[number - 1 : number] - tokens
    return lengths


def sentence_permutation() -> Corruption:
    """Permute the sentences: "D E . A B C ."."""

    def corrupt(generator: np.random.Generator, text: Text, mask: int) -> Text:
        del mask
        order = generator.permutation(text.sentences.max() + 1)
        return text.take(np.argsort(order[text.sentences], kind="stable"))

    return corrupt


def document_rotation() -> Corruption:
    """Rotate the text to begin at a random token: "C . D E . A B"."""

    def corrupt(generator: np.random.Generator, text: Text, mask: int) -> Text:
        del mask
        size = len(text.tokens)
        return text.take((generator.integers(size) + np.arange(size)) % size)

    return corrupt


def corruptions(name: str, *, rate: float, mean_span: float) -> Mapping[str, Corruption]:
    """Return the five corruptions by name.

    Args:
        name: the objective's name, for messages.
        rate: share of the tokens that are masked, deleted or in spans, rounded for each text.
        mean_span: mean length of the spans of text infilling, in tokens.

    Raises:
        ValueError: `rate` or `mean_span` is out of range.
    """
    check_rate(name, rate=rate)
    # Shorter spans would insert more masks than they remove tokens.
    if not mean_span >= 1:
        raise ValueError(f"{name}: mean_span={mean_span} must be 1 token or more")
    return {
        "token_masking": token_masking(rate=rate),
        "token_deletion": token_deletion(rate=rate),
        "text_infilling": text_infilling(rate=rate, mean_span=mean_span),
        "sentence_permutation": sentence_permutation(),
        "document_rotation": document_rotation(),
    }


def _some(generator: np.random.Generator, text: Text, rate: float) -> Bool[np.ndarray, " L"]:
    """Choose exactly the rounded share of the tokens, all subsets equally likely."""
    size = len(text.tokens)
    chosen = np.zeros(size, bool)
    chosen[generator.choice(size, size=noise_count(size, rate=rate), replace=False)] = True
    return chosen
