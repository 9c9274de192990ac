"""Choose the masked tokens of an encoder's rows, and replace them; for many rows at once.

Noise is a number for each token: 0 if the token is not masked, and the same number, 1 or more, for
all tokens of a span. A row has at most as much noise as its budget, a rounded share of its text.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from t5x_like.batches.encoder_rows import SpecialTokens, TextRows, Units, units

Noise = Int[np.ndarray, "B L"]
Choose = Callable[[np.random.Generator, TextRows, SpecialTokens], Noise]

# Attempts to place a span before a row is left with less noise than its budget.
_TRIES = 32


def budgets(text: Bool[np.ndarray, "B L"], *, rate: float) -> Int[np.ndarray, " B"]:
    """Return the masked tokens of each row: the rounded share of its text, at least one if any."""
    count = text.sum(axis=1)
    return np.minimum(np.maximum(np.rint(count * rate).astype(np.int64), 1), count)


def single_tokens(
    generator: np.random.Generator, text: Bool[np.ndarray, "B L"], *, budget: Int[np.ndarray, " B"]
) -> Noise:
    """Mask exactly the budget of each row, all subsets equally likely; each token is a span."""
    keys = np.where(text, generator.random(text.shape, np.float32), 2)
    order = np.argsort(keys, axis=1)
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(1, text.shape[1] + 1)[None], axis=1)
    return np.where(rank <= budget[:, None], rank, 0)


def tokens_at(rate: float) -> Choose:
    """Return a function that masks single tokens anywhere in the text."""

    def choose(generator: np.random.Generator, rows: TextRows, special: SpecialTokens) -> Noise:
        del special
        return single_tokens(generator, rows.text, budget=budgets(rows.text, rate=rate))

    return choose


def spans_at(
    rate: float,
    chances: Float[np.ndarray, " longest"],
    *,
    of: Literal["word", "token"] = "word",
    apart: int = 0,
) -> Choose:
    """Return a function that masks spans of whole words, or of tokens; see `spans`."""

    def choose(generator: np.random.Generator, rows: TextRows, special: SpecialTokens) -> Noise:
        starts = special.word_starts[rows.tokens] if of == "word" else np.ones_like(rows.text)
        within = units(starts, text=rows.text)
        budget = budgets(rows.text, rate=rate)
        return spans(generator, within, budget=budget, chances=chances, apart=apart)

    return choose


def geometric(p: float, *, longest: int) -> Float[np.ndarray, " longest"]:
    """Return probabilities of lengths 1, 2, ...: (1 - p)^(n - 1) p, normalized (SpanBERT, 3.1)."""
    chances = (1 - p) ** np.arange(longest)
    return chances / chances.sum()


def harmonic(longest: int) -> Float[np.ndarray, " longest"]:
    """Return probabilities of lengths 1, 2, ..., proportional to 1 / n (ALBERT, section 3.1)."""
    chances = 1 / np.arange(1, longest + 1)
    return chances / chances.sum()


def spans(
    generator: np.random.Generator,
    within: Units,
    *,
    budget: Int[np.ndarray, " B"],
    chances: Float[np.ndarray, " longest"],
    apart: int = 0,
) -> Noise:
    """Place spans of whole units, of random lengths at random positions, until the budget is spent.

    First a length is sampled, then positions, until one is free: the span covers only text, and no
    other span. So lengths are distributed by `chances`, except for the last span, which has as many
    units as the budget still allows. If no further unit fits, part of the budget stays unused.

    Args:
        generator: the random generator.
        within: the units.
        budget: the number of masked tokens of each row.
        chances: the probabilities of the lengths 1, 2, ..., in units.
        apart: the least number of units between two spans, 0 or 1.
    """
    search = _Search(generator, within, left=budget.copy(), chances=chances, apart=apart)
    rows = np.flatnonzero((budget > 0) & (within.counts > 0))
    failures = np.zeros(len(budget), np.int64)
    while rows.size:
        placed = search.step(rows)
        failures[rows] = np.where(placed, 0, failures[rows] + 1)
        rows = rows[(search.left[rows] > 0) & (failures[rows] < _TRIES)]
    of_unit = search.taken[:, 1 : within.sizes.shape[1] + 1]
    noise = np.take_along_axis(of_unit, np.maximum(within.of_token, 0), axis=1)
    return np.where(within.text, noise, 0)


class _Search:
    """The spans placed so far. Units are shifted right by one here, with free units around them."""

    def __init__(
        self,
        generator: np.random.Generator,
        within: Units,
        *,
        left: Int[np.ndarray, " B"],
        chances: Float[np.ndarray, " longest"],
        apart: int,
    ):
        self.left = left
        self._generator, self._within, self._apart = generator, within, apart
        self._limits = np.cumsum(chances)
        margin = [[0, 0], [1, len(chances) + 1]]
        self.taken = np.pad(np.zeros_like(within.sizes), margin)
        self._sizes = np.pad(within.sizes, margin, constant_values=self.taken.size)
        self._runs = np.pad(within.runs, margin, constant_values=-1)
        self._placed = np.zeros(len(left), np.int64)
        self._wanted = self._lengths(len(left))

    def step(self, rows: Int[np.ndarray, " R"]) -> Bool[np.ndarray, " R"]:
        """Try one position for a span in each of the rows; return whether it was free."""
        wanted = self._wanted[rows]
        choices = np.maximum(self._within.counts[rows] - wanted + 1, 1)
        first = 1 + (self._generator.random(rows.size) * choices).astype(np.int64)
        offsets = np.arange(len(self._limits))
        here = (rows[:, None], first[:, None] + offsets)
        used = np.cumsum(self._sizes[here], axis=1)
        inside = (offsets < wanted[:, None]) & (used <= self.left[rows][:, None])
        count = inside.sum(axis=1)
        wrong = (self.taken[here] > 0) | (self._runs[here] != self._runs[rows, first][:, None])
        free = (count > 0) & ~(wrong & inside).any(axis=1)
        if self._apart:
            free &= (self.taken[rows, first - 1] == 0) & (self.taken[rows, first + count] == 0)
        self._place(rows[free], here[1][free], inside[free])
        self.left[rows[free]] -= used[free, count[free] - 1]
        self._wanted[rows[free]] = self._lengths(int(free.sum()))
        return free

    def _place(self, rows: np.ndarray, positions: np.ndarray, inside: np.ndarray) -> None:
        self._placed[rows] += 1
        number = np.broadcast_to(self._placed[rows][:, None], positions.shape)
        self.taken[np.broadcast_to(rows[:, None], positions.shape)[inside], positions[inside]] = (
            number[inside]
        )

    def _lengths(self, count: int) -> Int[np.ndarray, " count"]:
        sampled = np.searchsorted(self._limits, self._generator.random(count), side="right")
        # The limit matters if rounding leaves the sum below 1.
        return np.minimum(sampled, len(self._limits) - 1) + 1


@dataclasses.dataclass(frozen=True)
class Writing:
    """Replaces masked tokens: by [MASK], a random token, or the token itself (BERT, section 3.1).

    Attributes:
        random_rate: share that becomes random tokens.
        random_tokens: where these are sampled from: the `vocabulary`, uniformly over all ids that
            are not special tokens; or the `text` of the rows, by frequency.
        kept_rate: share that is kept.
        together: whether each "token" of a span is replaced independently, or the "span" at once.
    """

    random_rate: float = 0.1
    kept_rate: float = 0.1
    random_tokens: Literal["vocabulary", "text"] = "vocabulary"
    together: Literal["token", "span"] = "token"

    def __call__(
        self,
        generator: np.random.Generator,
        tokens: np.ndarray,
        noise: Noise,
        special: SpecialTokens,
    ) -> Int[np.ndarray, "B L"]:
        """Return the tokens [B, L] after the replacement."""
        draw = generator.random((tokens.shape[0], tokens.shape[1] + 1), np.float32)
        draw = np.take_along_axis(draw, noise, axis=1) if self.together == "span" else draw[:, :-1]
        written = np.full_like(tokens, special.mask)
        is_random = (noise > 0) & (draw < self.random_rate)
        if is_random.any():
            choices = special.ordinary
            if self.random_tokens == "text":
                choices = tokens[~special.is_special[tokens]]
            sampled = generator.integers(len(choices), size=np.count_nonzero(is_random))
            written[is_random] = choices[sampled]
        return np.where((noise > 0) & (draw < 1 - self.kept_rate), written, tokens)


_ORDERS = np.array([[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]])  # without the identity


def shuffled_trigrams(
    generator: np.random.Generator,
    tokens: Int[np.ndarray, "B L"],
    free: Bool[np.ndarray, "B L"],
    *,
    rate: float,
) -> tuple[Int[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
    """Shuffle random trigrams (StructBERT, section 2.2.1).

    Args:
        generator: the random generator.
        tokens: the tokens of the rows.
        free: True on tokens that may be shuffled: text that is not masked.
        rate: share of the free tokens that are shuffled, rounded to whole trigrams.

    Returns:
        The tokens [B, L], and True where a trigram was shuffled.
    """
    count = free.sum(axis=1)
    # With fewer free tokens than a trigram has, a span could only be shorter.
    budget = np.where(count < 3, 0, 3 * np.rint(count * rate / 3).astype(np.int64))
    within = units(np.ones_like(free), text=free)
    trigrams = spans(generator, within, budget=budget, chances=np.array([0.0, 0.0, 1.0]))
    # The three positions of a trigram are consecutive.
    rows, positions = (where.reshape(-1, 3) for where in np.nonzero(trigrams))
    order = _ORDERS[generator.integers(len(_ORDERS), size=len(rows))]
    out = tokens.copy()
    out[rows, positions] = tokens[rows, np.take_along_axis(positions, order, axis=1)]
    return out, trigrams > 0


def boundaries(noise: Noise) -> tuple[Int[np.ndarray, "B L"], Int[np.ndarray, "B L"]]:
    """Return the positions before and after the span of each masked token; 0 elsewhere."""
    length = noise.shape[1]
    at = np.arange(length)
    new = np.ones_like(noise, bool)
    new[:, 1:] = noise[:, 1:] != noise[:, :-1]
    first = np.maximum.accumulate(np.where(new, at, 0), axis=1)
    ends = np.ones_like(new)
    ends[:, :-1] = new[:, 1:]
    last = np.minimum.accumulate(np.where(ends, at, length)[:, ::-1], axis=1)[:, ::-1]
    return np.where(noise > 0, first - 1, 0), np.where(noise > 0, last + 1, 0)
