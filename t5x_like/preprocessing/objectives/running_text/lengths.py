"""Compute the raw chunk length with which inputs and targets fill a batch without padding."""

import bisect
from collections.abc import Callable, Mapping
from typing import NamedTuple

import seqio

from t5x_like.vocabularies import Vocabulary

Lengths = Mapping[str, int] | None
OutputFeatures = Mapping[str, seqio.Feature]


class Sizes(NamedTuple):
    """The most tokens (without EOS) and sentinels that a raw chunk of a given length can need."""

    inputs: int
    targets: int
    sentinels: int = 0


def check_features(
    objective: str, *, names: tuple[str, ...], lengths: Lengths, features: OutputFeatures
) -> None:
    """Raises ValueError unless each name has a length of 2 or more and a usable feature."""
    for name in names:
        if name not in features:
            raise ValueError(
                f"{objective} needs a feature {name!r}, the task's output_features have "
                f"{sorted(features)}"
            )
        length = (lengths or {}).get(name)
        if length is None or length < 2:
            raise ValueError(f"{objective} needs lengths.{name} of 2 or more, got {length}")
        if features[name].add_eos and features[name].vocabulary.eos_id is None:
            raise ValueError(
                f"{objective}: feature {name!r} has add_eos=True, but its vocabulary has no "
                "eos_id; use add_eos=False or a vocabulary with an end-of-sequence token"
            )


def plan(
    objective: str,
    *,
    sizes: Callable[[int], Sizes],
    sequence_length: Lengths,
    output_features: OutputFeatures,
) -> int:
    """The raw chunk length that fills the inputs; the targets must have room for the rest.

    Args:
        objective: its name, for messages.
        sizes: see `Sizes`; its inputs must not shrink as the raw length grows.
        sequence_length: length of "inputs" and of "targets" in tokens, EOS included.
        output_features: the task's features; an EOS is counted where a feature has `add_eos`.

    Returns:
        The raw length: the largest that fits the inputs or, where its targets do not fit, the
        largest whose targets fit among those that fill the inputs equally.

    Raises:
        ValueError: a length or feature is missing, the two vocabularies differ, the targets are
            too short, or the vocabulary has too few sentinels.
    """
    check_features(
        objective,
        names=("inputs", "targets"),
        lengths=sequence_length,
        features=output_features,
    )
    assert sequence_length is not None  # checked above; for the type checker
    inputs, targets = output_features["inputs"], output_features["targets"]
    if inputs.vocabulary != targets.vocabulary:
        raise ValueError(
            f"{objective} cuts inputs and targets out of one text, so both features need the "
            f"same vocabulary, got {inputs.vocabulary} and {targets.vocabulary}"
        )
    raw_length = fill(
        sizes,
        inputs=sequence_length["inputs"] - inputs.add_eos,
        targets=sequence_length["targets"] - targets.add_eos,
    )
    if raw_length < 2:
        raise ValueError(
            f"{objective}: lengths.inputs={sequence_length['inputs']} is too short for two tokens "
            "of text"
        )
    needed = sizes(raw_length)
    if needed.targets + targets.add_eos > sequence_length["targets"]:
        raise ValueError(
            f"{objective}: lengths.inputs={sequence_length['inputs']} takes chunks of {raw_length} "
            f"raw tokens, for which lengths.targets={sequence_length['targets']} must be "
            f"{needed.targets + targets.add_eos} or more; lengthen it or shorten the inputs"
        )
    _check_sentinels(objective, needed.sentinels, vocabulary=targets.vocabulary.plain)
    return raw_length


def _check_sentinels(objective: str, needed: int, *, vocabulary: Vocabulary) -> None:
    if needed > vocabulary.sentinels:
        raise ValueError(
            f"{objective}: inputs of this length can need {needed} sentinels, the vocabulary of "
            f"{vocabulary.vocab_size} has {vocabulary.sentinels}; use fewer or longer spans, "
            "shorter inputs, or a vocabulary with more sentinels"
        )


def fill(sizes: Callable[[int], Sizes], *, inputs: int, targets: int) -> int:
    """The raw length that fills `inputs` tokens and, if possible, fits `targets` tokens.

    Both without EOS. Among the raw lengths that fill the inputs equally it is the longest whose
    targets fit, and the longest of all if none does.
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
