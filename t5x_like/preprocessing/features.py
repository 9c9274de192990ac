"""From the token features of examples to the fields of a batch: shift, concatenate, pad or pack.

A converter says which features of an example it reads, which sequences it makes of them, and which
fields of a batch come out of the rows that those sequences fill. It is NumPy, and acts on what
tf.data gives: a row costs microseconds, and there is no graph to trace anew for each epoch. To add
one, subclass `Converter` and add a line to `CONVERTERS`.
"""

import abc
import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from t5x_like.names import choose

Example = Mapping[str, np.ndarray]  # feature -> int32 [L]
Sequences = dict[str, np.ndarray]  # side ("encoder", "decoder") -> int32 [C, L], C channels
Row = list[Sequences]  # the examples that share a row
Batch = dict[str, np.ndarray]

LOSS_ON_TOKENS = ("targets", "all")
LOSS_ON_POSITIONS = ("changed", "weights", "all")


@dataclasses.dataclass(frozen=True)
class Rows:
    """The sequences of one side of a batch, laid out one after the other; 0 where there is none.

    Attributes:
        channels: the aligned values of each position, tokens first.
        segment_ids: 1, 2, ... for the first, second, ... example of a row, 0 for padding.
        positions: 0, 1, ... within each example.
    """

    channels: Int[np.ndarray, "C B L"]
    segment_ids: Int[np.ndarray, "B L"]
    positions: Int[np.ndarray, "B L"]

    def shifted(self, channel: int, *, first: int = 0) -> Int[np.ndarray, "B L"]:
        """A channel moved right by one, starting each example with `first`; 0 on padding."""
        moved = np.roll(self.channels[channel], 1, axis=1)
        moved[self.positions == 0] = first
        return np.where(self.segment_ids > 0, moved, 0)


class Converter(abc.ABC):
    """How examples become batches. A frozen dataclass, its settings are its fields."""

    @property
    @abc.abstractmethod
    def features(self) -> tuple[str, ...]:
        """The features of an example that it reads: all that the task has."""

    @abc.abstractmethod
    def row_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Tokens a row of each side, from the most tokens of each feature."""

    @abc.abstractmethod
    def sequences(self, example: Example) -> Sequences:
        """What an example puts into a row: on each side int32 [C, L], C aligned channels."""

    @abc.abstractmethod
    def fields(self, rows: Mapping[str, Rows]) -> Batch:
        """The fields of a batch, without segment ids and positions; [B, L] each, B may be 0."""


@dataclasses.dataclass(frozen=True)
class EncoderDecoder(Converter):
    """Reads inputs, predicts targets (T5, section 2.1)."""

    features = ("inputs", "targets")

    def row_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Each side has the length of its feature."""
        return {"encoder": lengths["inputs"], "decoder": lengths["targets"]}

    def sequences(self, example: Example) -> Sequences:
        """One channel a side: the tokens."""
        return {"encoder": example["inputs"][None], "decoder": example["targets"][None]}

    def fields(self, rows: Mapping[str, Rows]) -> Batch:
        """Loss on every target."""
        return {"encoder_input_tokens": rows["encoder"].channels[0], **_decoder_fields(rows)}


@dataclasses.dataclass(frozen=True)
class Decoder(Converter):
    """Predicts targets from nothing but the targets before them: a language model."""

    features = ("targets",)

    def row_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """The length of the targets."""
        return {"decoder": lengths["targets"]}

    def sequences(self, example: Example) -> Sequences:
        """One channel: the tokens."""
        return {"decoder": example["targets"][None]}

    def fields(self, rows: Mapping[str, Rows]) -> Batch:
        """Loss on every token."""
        return _decoder_fields(rows)


@dataclasses.dataclass(frozen=True)
class PrefixLM(Converter):
    """Inputs and targets one after the other; the inputs see each other (T5, section 3.2.1).

    `decoder_causal_attention` is 1 where a position reads an input, or the start from which the
    first input is predicted, 0 where it reads a target: with n inputs, on the first n + 1.

    Attributes:
        loss_on: "targets", or "all" for inputs too.
        length: tokens a row; 0 for inputs and targets together. What is longer is cut at its end.
    """

    loss_on: str = "targets"
    length: int = 0

    features = ("inputs", "targets")

    def __post_init__(self) -> None:
        choose("loss_on", self.loss_on, dict.fromkeys(LOSS_ON_TOKENS))
        if self.length < 0:
            raise ValueError(f"length={self.length} of the rows of prefix_lm must be 0 or more")

    def row_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """One side, of both lengths together."""
        return {"decoder": self.length or lengths["inputs"] + lengths["targets"]}

    def sequences(self, example: Example) -> Sequences:
        """Two channels: the tokens, and 1 on inputs."""
        inputs, targets = example["inputs"], example["targets"]
        tokens = np.concatenate([inputs, targets])
        return {"decoder": np.stack([tokens, np.arange(len(tokens)) < len(inputs)])}

    def fields(self, rows: Mapping[str, Rows]) -> Batch:
        """Loss on targets, or on all tokens."""
        batch = _decoder_fields(rows)
        if self.loss_on == "targets":
            batch["decoder_loss_weights"] *= 1 - rows["decoder"].channels[1]
        batch["decoder_causal_attention"] = rows["decoder"].shifted(1, first=1)
        return batch


@dataclasses.dataclass(frozen=True)
class Encoder(Converter):
    """Predicts at each position of the inputs the token of the targets there (BERT).

    Attributes:
        loss_on: "changed", where targets differ from inputs; "weights", where the feature
            "loss_weights" is 1, for noise that leaves some chosen tokens as they are; or "all".
    """

    loss_on: str = "changed"

    def __post_init__(self) -> None:
        choose("loss_on", self.loss_on, dict.fromkeys(LOSS_ON_POSITIONS))

    @property
    def features(self) -> tuple[str, ...]:
        """Aligned inputs and targets, and the weights where they are asked for."""
        weights = ("loss_weights",) if self.loss_on == "weights" else ()
        return ("inputs", "targets", *weights)

    def row_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """The length of the inputs, which the targets must have too."""
        if lengths["inputs"] != lengths["targets"]:
            raise ValueError(
                f"lengths.inputs={lengths['inputs']} and lengths.targets={lengths['targets']} must "
                "be equal for the converter encoder, whose targets are aligned with its inputs"
            )
        return {"encoder": lengths["inputs"]}

    def sequences(self, example: Example) -> Sequences:
        """Three channels: inputs, targets, and 1 where there is a loss.

        Raises:
            ValueError: features of different length, which are not aligned.
        """
        sizes = {name: len(example[name]) for name in self.features}
        if len(set(sizes.values())) > 1:
            raise ValueError(
                f"the converter encoder needs targets aligned with inputs, got lengths {sizes}; "
                "take an objective with aligned targets, or the converter encoder_decoder"
            )
        inputs, targets = example["inputs"], example["targets"]
        weights = example["loss_weights"] if self.loss_on == "weights" else inputs != targets
        return {"encoder": np.stack([inputs, targets, weights])}

    def fields(self, rows: Mapping[str, Rows]) -> Batch:
        """Loss as `loss_on` says, never on padding."""
        inputs, targets, weights = rows["encoder"].channels
        if self.loss_on == "all":
            weights = targets > 0
        return {
            "encoder_input_tokens": inputs,
            "encoder_target_tokens": targets,
            "encoder_loss_weights": weights.astype(np.float32),
        }


def _decoder_fields(rows: Mapping[str, Rows]) -> dict[str, Any]:
    side = rows["decoder"]
    return {
        "decoder_input_tokens": side.shifted(0),
        "decoder_target_tokens": side.channels[0],
        "decoder_loss_weights": (side.channels[0] > 0).astype(np.float32),
    }


CONVERTERS: dict[str, type[Converter]] = {
    "encoder_decoder": EncoderDecoder,
    "decoder": Decoder,
    "prefix_lm": PrefixLM,
    "encoder": Encoder,
}


def build(name: str, **settings: Any) -> Converter:
    """The converter of a name, with its settings.

    Raises:
        ValueError: no converter has this name, or it has no such setting, or a bad value.
    """
    converter = choose("converter", name, CONVERTERS)
    known = inspect.signature(converter).parameters
    for setting in settings:
        choose(f"setting of the converter {name}", setting, known)
    return converter(**settings)


def check(converter: Converter, *, features: Sequence[str], lengths: Mapping[str, int]) -> None:
    """Checks that a task suits a converter.

    Args:
        converter: of the batches.
        features: of the task's examples.
        lengths: the most tokens of each feature.

    Raises:
        ValueError: the converter lacks a feature or would ignore one, or a length is missing or
            below 1, or the lengths do not fit each other.
    """
    if set(features) != set(converter.features):
        fitting = [
            name for name, other in CONVERTERS.items() if set(other().features) == set(features)
        ]
        raise ValueError(
            f"the converter {_name(converter)} reads {', '.join(converter.features)}, but the "
            f"examples have {', '.join(features)}. Converters that read these: "
            f"{', '.join(fitting) or 'none'}"
        )
    for name in converter.features:
        if lengths.get(name, 0) < 1:
            raise ValueError(
                f"lengths.{name}={lengths.get(name)} must be 1 or more tokens for the converter "
                f"{_name(converter)}"
            )
    converter.row_lengths(lengths)


def _name(converter: Converter) -> str:
    names = [name for name, one in CONVERTERS.items() if type(converter) is one]
    return names[0] if names else type(converter).__name__


class Packer:
    """Puts short examples together into rows: first fit, among a few rows that are still open.

    Segment ids tell the examples of a row apart. Where an example fits no open row it opens one,
    and the oldest row is closed. Examples keep their order within a row, none is split or lost.
    """

    def __init__(
        self, row_lengths: Mapping[str, int], *, open_rows: int = 16, rows: Iterable[Row] = ()
    ):
        """Starts with some open rows; `open_rows` = 1 keeps the examples' order over rows, too."""
        self.rows: list[Row] = list(rows)
        self._row_lengths = dict(row_lengths)
        self._limit = open_rows
        self._free = [self._free_in(row) for row in self.rows]

    def add(self, sequences: Sequences) -> list[Row]:
        """Takes in the sequences of an example; gives the row that it closed, if any."""
        sizes = {side: sequences[side].shape[1] for side in self._row_lengths}
        for row, free in zip(self.rows, self._free, strict=True):
            if all(size <= free[side] for side, size in sizes.items()):
                row.append(sequences)
                for side, size in sizes.items():
                    free[side] -= size
                return []
        self.rows.append([sequences])
        self._free.append(self._free_in([sequences]))
        if len(self.rows) <= self._limit:
            return []
        self._free.pop(0)
        return [self.rows.pop(0)]

    def close(self) -> list[Row]:
        """Gives the rows that are still open."""
        rows, self.rows, self._free = self.rows, [], []
        return rows

    def _free_in(self, row: Row) -> dict[str, int]:
        return {
            side: length - sum(sequences[side].shape[1] for sequences in row)
            for side, length in self._row_lengths.items()
        }


def to_batch(
    rows: Sequence[Row], *, converter: Converter, lengths: Mapping[str, int], pack: bool
) -> Batch:
    """Lays rows of examples out as a batch.

    Args:
        rows: the sequences of each row's examples; an empty row is padding, with no loss.
        converter: that made the sequences.
        lengths: the most tokens of each feature.
        pack: add `<side>_segment_ids` and `<side>_positions`; without it a row has one example.

    Returns:
        The converter's fields, [B, L] with B = len(rows), int32 or float32 (loss weights).
    """
    nothing = converter.sequences({name: np.zeros(0, np.int32) for name in converter.features})
    sides = {}
    for side, length in converter.row_lengths(lengths).items():
        sequences = [[one[side] for one in row] for row in rows]
        sides[side] = _lay_out(sequences, length=length, channels=len(nothing[side]))
    batch = converter.fields(sides)
    if pack:
        for side, laid_out in sides.items():
            batch[f"{side}_segment_ids"] = laid_out.segment_ids
            batch[f"{side}_positions"] = laid_out.positions
    return batch


def _lay_out(
    rows: Sequence[Sequence[Int[np.ndarray, "C L"]]], *, length: int, channels: int
) -> Rows:
    out = np.zeros([channels, len(rows), length], np.int32)
    segment_ids, positions = np.zeros([2, len(rows), length], np.int32)
    count_up = np.arange(length, dtype=np.int32)
    for index, row in enumerate(rows):
        start = 0
        for segment, sequence in enumerate(row, start=1):
            end = min(start + sequence.shape[1], length)
            out[:, index, start:end] = sequence[:, : end - start]
            segment_ids[index, start:end] = segment
            positions[index, start:end] = count_up[: end - start]
            start = end
    return Rows(out, segment_ids, positions)
