"""Compute the raw chunk length with which inputs and targets fill a batch without padding."""

import bisect
from collections.abc import Callable, Mapping
from typing import NamedTuple

from t5x_like.vocabularies import Vocabulary


class Sizes(NamedTuple):
    """The most tokens (without EOS) and sentinels that a raw chunk of some length can need."""

    inputs: int
    targets: int
    sentinels: int = 0


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
