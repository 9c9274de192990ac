"""Objectives over chunks of running text: how long a chunk is, and its pair of texts."""

import bisect
import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from t5x_like.objectives.objective import PAIR, Example, ExampleSpec, Feature, OfChunks, RunningText
from t5x_like.vocabularies import Vocabulary

Tokens = Int32[np.ndarray, "B L"]
Ragged = list[Int32[np.ndarray, " L"]]  # rows of different lengths
# (tokens of chunks, vocabulary, random numbers) -> inputs and targets of each, without EOS.
Corrupt = Callable[[Tokens, Vocabulary, np.random.Generator], tuple[Ragged, Ragged]]


class Sizes(NamedTuple):
    """The most tokens (without EOS) and sentinels that a raw chunk of some length can need.

    They decide how long a chunk is: the longest whose inputs fit `data.lengths.inputs`.
    """

    inputs: int
    targets: int
    sentinels: int = 0


def pairs_of_chunks(
    name: str,
    *,
    sizes: Callable[[int], Sizes],
    corrupt: Corrupt,
    converters: tuple[str, ...] = ("encoder_decoder", "prefix_lm"),
) -> RunningText:
    """Make an objective that turns each chunk of running text into an (inputs, targets) pair.

    Args:
        name: the objective's name, also for messages.
        sizes: raw tokens of a chunk -> the most tokens that it can become.
        corrupt: makes the pairs of some chunks of one length, 1 or more.
        converters: see `Objective`.

    Raises (when a run plans it, before anything is read):
        ValueError: a length or feature is missing, or the two vocabularies differ; or see
            `plan_chunk`.
    """

    def plan(spec: ExampleSpec) -> tuple[int, OfChunks]:
        spec.check(name, *PAIR)
        inputs, targets = (spec.features[side] for side in PAIR)
        if inputs.vocabulary != targets.vocabulary:
            raise ValueError(
                f"{name} cuts inputs and targets out of one text, so both features need the "
                f"same vocabulary, got {inputs.vocabulary} and {targets.vocabulary}"
            )
        length = plan_chunk(
            name,
            sizes=sizes,
            lengths=spec.lengths,
            ends={side: spec.features[side].add_eos for side in PAIR},
            vocabulary=targets.vocabulary,
        )
        return length, _Pair(corrupt, inputs, targets)

    return RunningText(name=name, features=PAIR, converters=converters, plan=plan)


@dataclasses.dataclass(frozen=True)
class _Pair:
    """Makes the examples of chunks."""

    corrupt: Corrupt
    inputs: Feature
    targets: Feature

    def __call__(self, chunks: Tokens, generator: np.random.Generator) -> list[Example]:
        pairs = zip(*self.corrupt(chunks, self.targets.vocabulary, generator), strict=True)
        ends = self.inputs.end, self.targets.end
        return [
            {
                "inputs": np.concatenate([inputs, ends[0]]),
                "targets": np.concatenate([targets, ends[1]]),
            }
            for inputs, targets in pairs
        ]


def plan_chunk(
    objective: str,
    *,
    sizes: Callable[[int], Sizes],
    lengths: Mapping[str, int],
    ends: Mapping[str, bool],
    vocabulary: Vocabulary,
) -> int:
    """Return the raw chunk length that fills the inputs; check that the targets fit too.

    Args:
        objective: its name, for messages.
        sizes: raw length -> `Sizes`; its inputs must not shrink as the raw length grows.
        lengths: the lengths of "inputs" and "targets" in tokens, including EOS.
        ends: whether each of the two ends with EOS.
        vocabulary: the vocabulary of both.

    Returns:
        The largest raw length that fits the inputs; if its targets do not fit, the largest length
        with equally many inputs whose targets fit.

    Raises:
        ValueError: the inputs or targets are too short, or the vocabulary has too few sentinels.
    """
    raw_length = fill(
        sizes,
        inputs=lengths["inputs"] - ends["inputs"],
        targets=lengths["targets"] - ends["targets"],
    )
    if raw_length < 2:
        raise ValueError(
            f"{objective}: lengths.inputs={lengths['inputs']} is too short for two tokens of text"
        )
    needed = sizes(raw_length)
    if needed.targets + ends["targets"] > lengths["targets"]:
        raise ValueError(
            f"{objective}: lengths.inputs={lengths['inputs']} takes chunks of {raw_length} "
            f"raw tokens, for which lengths.targets={lengths['targets']} must be "
            f"{needed.targets + ends['targets']} or more; lengthen it or shorten the inputs"
        )
    _check_sentinels(objective, needed.sentinels, vocabulary=vocabulary)
    return raw_length


def _check_sentinels(objective: str, needed: int, *, vocabulary: Vocabulary) -> None:
    if needed > vocabulary.sentinels:
        raise ValueError(
            f"{objective}: inputs of this length can need {needed} sentinels, the vocabulary of "
            f"{vocabulary.vocab_size} has {vocabulary.sentinels}; use fewer or longer spans, "
            "shorter inputs, or a vocabulary with more sentinels"
        )


def fill(sizes: Callable[[int], Sizes], *, inputs: int, targets: int) -> int:
    """Return the raw length that fills `inputs` tokens and, if possible, fits `targets` tokens.

    Both exclude EOS. Among the raw lengths that fill the inputs equally, it is the longest whose
    targets fit, or the longest of all if no targets fit.
    """
    beyond = inputs + 1
    while sizes(beyond).inputs <= inputs:
        beyond *= 2
    longest = bisect.bisect_right(range(beyond), inputs, key=lambda n: sizes(n).inputs) - 1
    for length in range(longest, -1, -1):
        if sizes(length).inputs < sizes(longest).inputs:
            break
        if sizes(length).targets <= targets:
            return length
    return longest
