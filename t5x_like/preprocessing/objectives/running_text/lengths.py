"""Check the lengths and features of a task whose objective cuts chunks of running text."""

from collections.abc import Callable, Mapping

import seqio

from t5x_like.batches.chunk_lengths import Sizes, plan_chunk

Lengths = Mapping[str, int] | None
OutputFeatures = Mapping[str, seqio.Feature]


def check_features(
    objective: str, *, names: tuple[str, ...], lengths: Lengths, features: OutputFeatures
) -> None:
    """Raise ValueError unless each name has a length of 2 or more and a usable feature."""
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
    """Return the raw chunk length that fills the inputs; check that the targets fit too.

    Args:
        objective: its name, for messages.
        sizes: raw length -> `Sizes`.
        sequence_length: the lengths of "inputs" and "targets" in tokens, including EOS.
        output_features: the task's features; an EOS is counted for a feature with `add_eos`.

    Raises:
        ValueError: a length or feature is missing, or the two vocabularies differ; or see
            `chunk_lengths.plan_chunk`.
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
    return plan_chunk(
        objective,
        sizes=sizes,
        lengths=sequence_length,
        ends={"inputs": inputs.add_eos, "targets": targets.add_eos},
        vocabulary=targets.vocabulary.plain,
    )
