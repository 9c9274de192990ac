"""Logit filters and token choosers, from which decoding strategies are composed.

A filter maps logits [B, V] to logits [B, V], given the tokens generated so far; -inf excludes a
token. A chooser picks one token per row. Filters are frozen dataclasses: filters with equal
settings are equal, so a second call with the same settings reuses the compiled code.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

from t5x_like.decoding.decoder_contract import as_ids, is_one_of


class Progress(NamedTuple):
    """The tokens generated so far: the first `step` of each row; the rest is padding.

    `prompt` has the preceding tokens that filters count; -1 marks positions that do not count.
    """

    step: Int[Array, ""]
    tokens: Int[Array, "B N"]
    prompt: Int[Array, "B P"] | None = None


Filter = Callable[[Float[Array, "B V"], Progress], Float[Array, "B V"]]
Chooser = Callable[[Float[Array, "B V"], PRNGKeyArray | None], Int[Array, " B"]]


def greedy(logits: Float[Array, "B V"], rng: PRNGKeyArray | None = None) -> Int[Array, " B"]:
    """Return the most likely token of each row; ties go to the lowest id."""
    del rng  # only part of a chooser's signature
    return jnp.argmax(logits, axis=-1)


def sample(logits: Float[Array, "B V"], rng: PRNGKeyArray | None) -> Int[Array, " B"]:
    """Sample a token per row from softmax(logits).

    Raises:
        ValueError: `rng` is None.
    """
    if rng is None:
        raise ValueError("rng=None: sampling needs a key, for example rng=jax.random.key(0)")
    return jax.random.categorical(rng, logits, axis=-1)


def apply_filters(
    logits: Float[Array, "B V"], filters: tuple[Filter, ...], *, progress: Progress
) -> Float[Array, "B V"]:
    """Apply all filters, in order, to the logits in float32."""
    logits = logits.astype(jnp.float32)
    for logit_filter in filters:
        logits = logit_filter(logits, progress)
    return logits


def log_softmax(logits: Float[Array, "... V"]) -> Float[Array, "... V"]:
    """Return log-probabilities in float32; a row of only -inf stays -inf, not NaN."""
    logits = logits.astype(jnp.float32)
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    return jnp.where(logits == -jnp.inf, -jnp.inf, logits - total)


@dataclasses.dataclass(frozen=True)
class Temperature:
    """Divides the logits by `value`: below 1 sharpens, above 1 flattens."""

    value: float

    def __post_init__(self):
        """Check the setting."""
        if not 0 < self.value < math.inf:
            raise ValueError(
                f"temperature={self.value}: above 0 and finite needed, or choose=greedy for 0"
            )

    def __call__(self, logits: Float[Array, "B V"], progress: Progress) -> Float[Array, "B V"]:
        """Return the scaled logits."""
        return logits / self.value


@dataclasses.dataclass(frozen=True)
class TopK:
    """Keeps the k most likely tokens (Fan et al. 2018, section 5.1), or all if k >= V.

    If tokens tie for rank k, the lowest ids are kept.
    """

    k: int

    def __post_init__(self):
        """Check the setting."""
        if self.k < 1:
            raise ValueError(f"top_k={self.k}: at least 1 needed (None keeps every token)")

    def __call__(self, logits: Float[Array, "B V"], progress: Progress) -> Float[Array, "B V"]:
        """Return the logits with -inf outside the top k."""
        if self.k >= logits.shape[-1]:
            return logits
        # A minimum over the k values: slicing the last would make XLA sort the whole vocabulary.
        smallest = jnp.min(jax.lax.top_k(logits, self.k)[0], axis=-1, keepdims=True)
        above, tied = logits > smallest, logits == smallest
        room = self.k - jnp.sum(above, axis=-1, keepdims=True)
        return _ban(logits, ~(above | (tied & (jnp.cumsum(tied, axis=-1) <= room))))


@dataclasses.dataclass(frozen=True)
class TopP:
    """Keeps the nucleus: the fewest tokens with a mass of at least p (Holtzman et al. 2020, eq. 2).

    The most likely token is always kept. If tokens tie at the edge, the lowest ids are kept.
    """

    p: float

    def __post_init__(self):
        """Check the setting."""
        if not 0 < self.p <= 1:
            raise ValueError(f"top_p={self.p}: above 0 and at most 1 needed")

    def __call__(self, logits: Float[Array, "B V"], progress: Progress) -> Float[Array, "B V"]:
        """Return the logits with -inf outside the nucleus."""
        if self.p == 1:  # rounding of the sums could cut off the tail
            return logits
        p = jnp.exp(log_softmax(logits))
        order = _as_ordered_bits(logits)
        last = _largest_bits(
            lambda bits: jnp.sum(p * (order >= bits), -1, keepdims=True) >= self.p, rows=len(logits)
        )
        above, tied = order > last, order == last
        # Tied tokens have equal mass; each is kept while the tokens before it have less than p.
        share = jnp.max(p * tied, axis=-1, keepdims=True)
        before = jnp.sum(p * above, -1, keepdims=True) + share * (jnp.cumsum(tied, axis=-1) - 1)
        return _ban(logits, ~(above | (tied & (before < self.p))))


def _as_ordered_bits(x: Float[Array, "B V"]) -> UInt32[Array, "B V"]:
    """Map floats to integers in the same order."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits & sign, ~bits, bits | sign)


def _largest_bits(
    holds: Callable[[UInt32[Array, "B 1"]], Bool[Array, "B 1"]], *, rows: int
) -> UInt32[Array, "B 1"]:
    """Find the largest number for which `holds` is true, bit by bit in 32 calls; 0 if none.

    `holds` must be true up to some number and false above it. Sorting the vocabulary instead takes
    25 times as long on a CPU.
    """

    def settle(i: Int[Array, ""], largest: UInt32[Array, "B 1"]) -> UInt32[Array, "B 1"]:
        trial = largest | (jnp.uint32(1 << 31) >> i.astype(jnp.uint32))
        return jnp.where(holds(trial), trial, largest)

    return jax.lax.fori_loop(0, 32, settle, jnp.zeros((rows, 1), jnp.uint32))


def _ban(logits: Float[Array, "B V"], banned: Bool[Array, "... V"]) -> Float[Array, "B V"]:
    return jnp.where(banned, -jnp.inf, logits)


@dataclasses.dataclass(frozen=True)
class Forbid:
    """Excludes the given token ids."""

    ids: tuple[int, ...]

    def __post_init__(self):
        """Convert one id or several to a sorted tuple."""
        object.__setattr__(self, "ids", as_ids(self.ids, name="forbid"))

    def __call__(self, logits: Float[Array, "B V"], progress: Progress) -> Float[Array, "B V"]:
        """Return the logits with -inf at the ids."""
        return _ban(logits, is_one_of(jnp.arange(logits.shape[-1]), self.ids))


@dataclasses.dataclass(frozen=True)
class VocabularySize:
    """Excludes the ids from `size` on: rows that pad the embedding table, such as T5's last 28."""

    size: int

    def __post_init__(self):
        """Check the setting."""
        if self.size < 1:
            raise ValueError(f"vocabulary_size={self.size}: at least 1 needed")

    def __call__(self, logits: Float[Array, "B V"], progress: Progress) -> Float[Array, "B V"]:
        """Return the logits with -inf from `size` on.

        Raises:
            ValueError: the model has fewer than `size` tokens.
        """
        if self.size > logits.shape[-1]:
            raise ValueError(
                f"vocabulary_size={self.size}: the model has {logits.shape[-1]} tokens, "
                "so at most that many allowed"
            )
        return _ban(logits, jnp.arange(logits.shape[-1]) >= self.size)


@dataclasses.dataclass(frozen=True)
class MinNewTokens:
    """Excludes the end tokens until `count` tokens have been generated."""

    count: int
    eos_ids: tuple[int, ...]

    def __post_init__(self):
        """Check the setting."""
        object.__setattr__(self, "eos_ids", as_ids(self.eos_ids, name="eos_ids"))
        if self.count < 0:
            raise ValueError(f"min_new_tokens={self.count}: at least 0 needed")

    def __call__(self, logits: Float[Array, "B V"], progress: Progress) -> Float[Array, "B V"]:
        """Return the logits, with -inf at the end tokens before step `count`."""
        ends = is_one_of(jnp.arange(logits.shape[-1]), self.eos_ids)
        return _ban(logits, ends & (progress.step < self.count))


@dataclasses.dataclass(frozen=True)
class NoRepeatNgrams:
    """Excludes tokens that would repeat an n-gram of their row (Paulus et al. 2018).

    The tokens of `Progress.prompt` count like generated tokens, as in transformers: the prompt of
    a language model, or the decoder's start token of an encoder-decoder.
    """

    n: int

    def __post_init__(self):
        """Check the setting."""
        if self.n < 1:
            raise ValueError(f"no_repeat_ngram_size={self.n}: at least 1 needed (None permits all)")

    def __call__(self, logits: Float[Array, "B V"], progress: Progress) -> Float[Array, "B V"]:
        """Return the logits with -inf at tokens that would repeat an n-gram."""
        tokens, step = progress.tokens, progress.step
        if progress.prompt is not None:
            tokens = jnp.concatenate([progress.prompt, tokens], axis=1)
            step = step + progress.prompt.shape[1]
        batch, length = tokens.shape
        if length < self.n:
            return logits
        starts = jnp.arange(length - self.n + 1)
        ngrams = tokens[:, starts[:, None] + jnp.arange(self.n)]
        # Before n - 1 tokens exist no n-gram is complete, so the tokens read here have no effect.
        last = jnp.maximum(step - (self.n - 1), 0) + jnp.arange(self.n - 1)
        same = jnp.all(ngrams[..., :-1] == tokens[:, last][:, None], axis=-1)
        # Skip tokens -1, which are not counted: as an index jnp would count -1 from the end.
        complete = (starts + self.n <= step) & (ngrams[..., -1] >= 0)
        banned = jnp.zeros(logits.shape, bool)
        rows = jnp.arange(batch)[:, None]
        return _ban(logits, banned.at[rows, ngrams[..., -1]].max(same & complete))


@dataclasses.dataclass(frozen=True)
class Suppress:
    """Excludes some token ids at every step."""

    ids: tuple[int, ...]

    def __post_init__(self):
        """Check the setting."""
        object.__setattr__(self, "ids", as_ids(self.ids, name="suppressed ids"))

    def __call__(self, logits: Float[Array, "B V"], progress: Progress) -> Float[Array, "B V"]:
        """Return the logits with -inf at the ids."""
        del progress
        return _ban(logits, is_one_of(jnp.arange(logits.shape[-1]), self.ids))


@dataclasses.dataclass(frozen=True)
class Force:
    """Excludes all but the given token ids at one step, and sets their logits to 0.

    Attributes:
        ids: one id or several.
        step: the number of tokens generated before: 0 for the first token.
    """

    ids: tuple[int, ...]
    step: int

    def __post_init__(self):
        """Check the settings."""
        object.__setattr__(self, "ids", as_ids(self.ids, name="forced ids"))
        if self.step < 0:
            raise ValueError(f"step={self.step} of forced ids: at least 0 needed")

    def __call__(self, logits: Float[Array, "B V"], progress: Progress) -> Float[Array, "B V"]:
        """Return 0 at the ids and -inf elsewhere at the step, and otherwise the logits."""
        forced = is_one_of(jnp.arange(logits.shape[-1]), self.ids)
        return jnp.where(progress.step == self.step, jnp.where(forced, 0.0, -jnp.inf), logits)


def make_filters(
    *,
    vocabulary_size: int | None = None,
    no_repeat_ngram_size: int | None = None,
    suppressed_ids: int | Sequence[int] = (),
    min_new_tokens: int = 0,
    eos_ids: int | Sequence[int] = (),
    first_ids: int | Sequence[int] = (),
    last_ids: int | Sequence[int] = (),
    max_new_tokens: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
) -> tuple[Filter, ...]:
    """Make the filters of the settings: first exclusions, then temperature, top-k and top-p.

    Args:
        suppressed_ids: the ids that are excluded at every step.
        eos_ids: the end tokens, used only for min_new_tokens.
        first_ids: the ids allowed as the first token; () allows all.
        last_ids: the ids allowed as token number max_new_tokens; () allows all.

    Raises:
        ValueError: a value is out of range.
    """
    filters: list[Filter] = []
    if vocabulary_size is not None:
        filters.append(VocabularySize(vocabulary_size))
    if no_repeat_ngram_size is not None:
        filters.append(NoRepeatNgrams(no_repeat_ngram_size))
    if ids := as_ids(suppressed_ids, name="suppressed ids"):
        filters.append(Suppress(ids))
    if min_new_tokens:
        filters.append(MinNewTokens(min_new_tokens, as_ids(eos_ids, name="eos_ids")))
    for forced, step in ((first_ids, 0), (last_ids, max_new_tokens - 1)):
        if ids := as_ids(forced, name="forced ids"):
            filters.append(Force(ids, step=step))
    if temperature != 1:
        filters.append(Temperature(temperature))
    if top_k is not None:
        filters.append(TopK(top_k))
    if top_p != 1:
        filters.append(TopP(top_p))
    return tuple(filters)
