"""The base class of converters: examples to sequences, and rows of sequences to a batch."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

from t5x_like.vocabularies import Vocabulary

Example = dict[str, np.ndarray]  # {feature: int32 [L]}, float32 for a value
Sequences = dict[str, np.ndarray]  # {side ("encoder", "decoder"): int32 [C, L]}, C channels
SequenceRow = list[Sequences]  # the examples that share a row
NumpyBatch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class SequenceRows:
    """The sequences of one side of a batch, one after the other in each row, padded with 0.

    Attributes:
        channels: the aligned values of each position, tokens first.
        segment_ids: 1, 2, ... for the first, second, ... example of a row, 0 for padding.
        positions: 0, 1, ... within each example.
    """

    channels: Int[np.ndarray, "C B L"]
    segment_ids: Int[np.ndarray, "B L"]
    positions: Int[np.ndarray, "B L"]

    def shifted(self, channel: int, *, first: int = 0) -> Int[np.ndarray, "B L"]:
        """Return a channel shifted right by one; each example starts with `first`, padding is 0."""
        moved = np.roll(self.channels[channel], 1, axis=1)
        moved[self.positions == 0] = first
        return np.where(self.segment_ids > 0, moved, 0)


class Converter(abc.ABC):
    """Turns examples into batches. A frozen dataclass whose fields are its settings.

    Attributes:
        packs: whether several examples may share a row, unless a feature describes the row.
        lengths: the lengths that a config may set, besides the features' lengths.
    """

    packs: ClassVar[bool] = True
    lengths: ClassVar[tuple[str, ...]] = ("inputs", "targets")

    @classmethod
    def from_vocabulary(cls, vocabulary: Vocabulary) -> dict[str, Any]:
        """Return the settings that follow from a vocabulary."""
        del vocabulary
        return {}

    @property
    def identity(self) -> str:
        """What decides the rows of batches, for a data position: its name and all settings."""
        return repr(self).replace("Converter(", "(")  # as the positions of earlier versions have it

    @property
    def continues(self) -> bool:
        """Whether row r of a batch continues row r of the batch before: see `continued`."""
        return False

    def continued(self, *, end: int) -> "Converter":
        """Return the same converter for rows that continue from batch to batch.

        Args:
            end: the token that ends a document.

        Raises:
            ValueError: it has no such form.
        """
        raise ValueError(
            f"data.continue_rows=True: {type(self).__name__} makes examples of their own; use "
            "data.converter='decoder', or a data.objective whose rows continue each other (xlnet)"
        )

    @property
    @abc.abstractmethod
    def features(self) -> tuple[str, ...]:
        """The features of an example that it reads; the task must have exactly these."""

    def feature_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Return the most tokens of each feature, from the lengths of a config."""
        return dict(lengths)

    @abc.abstractmethod
    def row_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Return the tokens per row of each side, from the most tokens of each feature."""

    @abc.abstractmethod
    def sequences(self, example: Example) -> Sequences:
        """Return the sequences of an example: for each side int32 [C, L], C aligned channels."""

    @abc.abstractmethod
    def fields(self, rows: Mapping[str, SequenceRows]) -> NumpyBatch:
        """Return the fields of a batch without packing's segment ids, positions; B may be 0."""


class GenerativeConverter(Converter):
    """A converter for networks that generate: the first token their decoder reads is `start`."""

    start: int

    @classmethod
    def from_vocabulary(cls, vocabulary: Vocabulary) -> dict[str, Any]:
        """Return `start`: the end token for GPT-2 and BART, <s> for LLaMA, padding for T5."""
        return {"start": vocabulary.start_id}
