"""Objectives over chunks of running text, in NumPy, with the same examples as seqio's objectives.

An objective joins the tokens of documents, and makes an example from each chunk of the running
text. It mirrors `preprocessing/objectives/running_text`, with the same random numbers.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Int32

from t5x_like.batches.chunk_lengths import plan_chunk
from t5x_like.batches.conversion import Example
from t5x_like.batches.noise_counts import check_spans, span_counts, span_sizes
from t5x_like.grain_pipeline.philox import Draws
from t5x_like.names import check_settings, hint
from t5x_like.vocabularies import Vocabulary

SEEDS = 3  # pairs per chunk, as in seqio's objectives
Tokens = Int32[np.ndarray, "L"]


class ChunkObjective(abc.ABC):
    """Turns running text into examples."""

    @abc.abstractmethod
    def join(self, pieces: Sequence[Sequence[int]], vocabulary: Vocabulary) -> Tokens:
        """Join the tokens of the pieces of a document into a part of the running text."""

    @abc.abstractmethod
    def chunk_length(self, lengths: Mapping[str, int], vocabulary: Vocabulary) -> int:
        """Return the number of tokens of a chunk.

        Args:
            lengths: the largest number of tokens of each feature.
            vocabulary: the vocabulary of the tokens.

        Raises:
            ValueError: a length is missing, or too short, or the vocabulary lacks a token.
        """

    @abc.abstractmethod
    def example(self, chunk: Tokens, seeds: np.ndarray, vocabulary: Vocabulary) -> Example:
        """Make an example from a chunk of at least one token.

        Args:
            chunk: the tokens, `chunk_length` of them, or fewer at the end of the text.
            seeds: int64 [SEEDS, 2], the pairs of seeds of the chunk.
            vocabulary: the vocabulary of the tokens.
        """


@dataclasses.dataclass(frozen=True)
class LanguageModeling(ChunkObjective):
    """Predict every token from the tokens before it; EOS ends each document."""

    def join(self, pieces: Sequence[Sequence[int]], vocabulary: Vocabulary) -> Tokens:
        """Join the pieces, each ended by EOS; skip empty pieces."""
        ended = [[*tokens, vocabulary.eos_id] for tokens in pieces if tokens]
        return np.array([token for one in ended for token in one], np.int32)

    def chunk_length(self, lengths: Mapping[str, int], vocabulary: Vocabulary) -> int:
        """Return the length of the targets."""
        _check("language_modeling", ("targets",), lengths=lengths, vocabulary=vocabulary)
        return lengths["targets"]

    def example(self, chunk: Tokens, seeds: np.ndarray, vocabulary: Vocabulary) -> Example:
        """Return the chunk as targets."""
        del seeds, vocabulary
        return {"targets": chunk}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanCorruption(ChunkObjective):
    """Replace random spans of tokens by one sentinel each (T5, sections 3.1.4 and 3.3.4).

    The settings have the same meaning as in seqio's objective of this name.
    """

    rate: float = 0.15
    mean_span: float = 3.0
    final_sentinel: bool = False
    random_roll: bool = False

    def __post_init__(self) -> None:
        check_spans("span_corruption", rate=self.rate, mean_span=self.mean_span)

    def join(self, pieces: Sequence[Sequence[int]], vocabulary: Vocabulary) -> Tokens:
        """Join the pieces without a separator, as in T5."""
        del vocabulary
        return np.array([token for one in pieces for token in one], np.int32)

    def chunk_length(self, lengths: Mapping[str, int], vocabulary: Vocabulary) -> int:
        """Return the most tokens of text whose inputs and targets fit, including EOS."""
        names = ("inputs", "targets")
        _check("span_corruption", names, lengths=lengths, vocabulary=vocabulary)
        return plan_chunk(
            "span_corruption",
            sizes=span_sizes(**dataclasses.asdict(self)),
            lengths=lengths,
            ends=dict.fromkeys(names, True),
            vocabulary=vocabulary,
        )

    def example(self, chunk: Tokens, seeds: np.ndarray, vocabulary: Vocabulary) -> Example:
        """Return inputs with a sentinel for each span, targets with the spans; EOS ends both."""
        mask = self._mask(len(chunk), Draws(seeds))
        first, end = vocabulary.first_sentinel, np.array([vocabulary.eos_id], np.int32)
        starts = mask & ~np.concatenate([[False], mask[:-1]])
        sentinels = (first + 1 - np.cumsum(starts)).astype(np.int32)
        inputs = np.where(starts, sentinels, chunk)[starts | ~mask]
        # Two slots for each token, the sentinel before it and itself; most are dropped.
        slots = np.stack([sentinels, chunk], axis=1)[np.stack([starts, mask], axis=1)]
        last = [first - np.count_nonzero(starts)] if self.final_sentinel else []
        targets = np.concatenate([slots, np.array(last, np.int32), end])
        return {"inputs": np.concatenate([inputs, end]), "targets": targets}

    def _mask(self, length: int, draws: Draws) -> Bool[np.ndarray, " length"]:
        """Return True on noise: kept and noise spans alternate, beginning with a kept span."""
        noise, spans = span_counts(length, rate=self.rate, mean_span=self.mean_span)
        totals = (length - noise, noise)
        kept, noisy, _ = draws.uniform([*(max(total - 1, 0) for total in totals), 0])
        parts = np.stack([_sizes(length - noise, spans, kept), _sizes(noise, spans, noisy)], 1)
        mask = np.repeat(np.tile([False, True], len(parts)), parts.reshape(-1))
        if self.random_roll:
            [word] = draws.words([0, 0, 1])[2]
            mask = np.roll(mask, int(word) % max(length, 1))
        return mask


def _sizes(total: int, parts: int, draws: np.ndarray) -> Int[np.ndarray, " parts"]:
    """Return the sizes of a random partition of `total` tokens; the largest draws are cuts."""
    chosen = np.argsort(-draws, kind="stable")[: max(parts - 1, 0)]
    return np.diff([0, *np.sort(chosen + 1), total])


OBJECTIVES: dict[str, Callable[..., ChunkObjective]] = {
    "language_modeling": LanguageModeling,
    "span_corruption": SpanCorruption,
    "random_spans": SpanCorruption,
}


def build(name: str, **settings: Any) -> ChunkObjective:
    """Build the objective of a name, with the settings of a config.

    Raises:
        ValueError: the objective is not available here, has no such setting, or a value is bad.
    """
    if name not in OBJECTIVES:
        raise ValueError(
            f"data.objective={name!r} is not among those that are made without seqio."
            f"{hint(name, OBJECTIVES)}. For the others install seqio, pip install "
            "'t5x_like[seqio]', and set data.module=data/text_files.py"
        )
    check_settings("data.objective_settings", OBJECTIVES[name], settings)
    return OBJECTIVES[name](**settings)


def _check(
    objective: str, names: Sequence[str], *, lengths: Mapping[str, int], vocabulary: Vocabulary
) -> None:
    for name in names:
        if lengths.get(name, 0) < 2:
            raise ValueError(
                f"{objective} needs lengths.{name} of 2 or more, got {lengths.get(name)}"
            )
    if vocabulary.eos_id is None:
        raise ValueError(
            f"{objective}: the vocabulary {vocabulary} has no eos_id; use one with an "
            "end-of-sequence token"
        )
