"""Objectives that turn a chunk of running text into a pair of inputs and targets."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int32

from t5x_like.objectives.chunk_lengths import Sizes, plan_chunk
from t5x_like.objectives.objective import PAIR, Example, Feature, OfChunk, Plan, RunningText
from t5x_like.vocabularies import Vocabulary

Tokens = Int32[np.ndarray, " L"]
# (tokens of a chunk, vocabulary, random numbers) -> inputs and targets, both without EOS.
Corrupt = Callable[[Tokens, Vocabulary, np.random.Generator], tuple[Tokens, Tokens]]


def pairs_of_chunks(
    name: str,
    *,
    sizes: Callable[[int], Sizes],
    corrupt: Corrupt,
    settings: Mapping[str, Any] | None = None,
    converters: tuple[str, ...] = ("encoder_decoder", "prefix_lm"),
) -> RunningText:
    """Make an objective that turns each chunk of running text into an (inputs, targets) pair.

    Args:
        name: the objective's name, also for messages.
        sizes: raw tokens of a chunk -> the most tokens that it can become.
        corrupt: makes the pair. A chunk has at least one token.
        settings: all settings of the objective.
        converters: see `Objective`.

    Raises (when a run plans it, before anything is read):
        ValueError: a length or feature is missing, or the two vocabularies differ; or see
            `chunk_lengths.plan_chunk`.
    """

    def plan(given: Plan) -> tuple[int, OfChunk]:
        given.check(name, *PAIR)
        inputs, targets = (given.features[side] for side in PAIR)
        if inputs.vocabulary != targets.vocabulary:
            raise ValueError(
                f"{name} cuts inputs and targets out of one text, so both features need the "
                f"same vocabulary, got {inputs.vocabulary} and {targets.vocabulary}"
            )
        length = plan_chunk(
            name,
            sizes=sizes,
            lengths=given.lengths,
            ends={side: given.features[side].add_eos for side in PAIR},
            vocabulary=targets.vocabulary,
        )
        return length, _Pair(corrupt, inputs, targets)

    return RunningText(
        name=name, settings=settings or {}, features=PAIR, converters=converters, plan=plan
    )


@dataclasses.dataclass(frozen=True)
class _Pair:
    """Makes the example of a chunk."""

    corrupt: Corrupt
    inputs: Feature
    targets: Feature

    def __call__(self, chunk: Tokens, generator: np.random.Generator) -> Example:
        inputs, targets = self.corrupt(chunk, self.targets.vocabulary, generator)
        return {
            "inputs": np.concatenate([inputs, self.inputs.end]),
            "targets": np.concatenate([targets, self.targets.end]),
        }
