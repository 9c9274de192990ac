"""What a converter is: from an example to sequences, from rows of sequences to a batch."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

from t5x_like.vocabularies import Vocabulary

Example = Mapping[str, np.ndarray]  # feature -> int32 [L], float32 for a value
Sequences = dict[str, np.ndarray]  # side ("encoder", "decoder") -> int32 [C, L], C channels
Row = list[Sequences]  # the examples that share a row
Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Rows:
    """The sequences of one side of a batch, laid out one after the other and padded with 0.

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
    """How examples become batches. A frozen dataclass whose fields are its settings.

    Attributes:
        packs: several examples may share a row, unless a feature describes the row.
        lengths: the lengths that a config may set beside those of the features.
    """

    packs: ClassVar[bool] = True
    lengths: ClassVar[tuple[str, ...]] = ("inputs", "targets")

    @classmethod
    def from_vocabulary(cls, vocabulary: Vocabulary) -> dict[str, Any]:
        """The settings that follow from a vocabulary."""
        del vocabulary
        return {}

    @property
    def continues(self) -> bool:
        """Whether row r of a batch continues row r of the batch before: see `continued`."""
        return False

    def continued(self, *, end: int) -> "Converter":
        """The same converter for rows that continue from batch to batch.

        Args:
            end: the token that ends a document.

        Raises:
            ValueError: there is none.
        """
        raise ValueError(
            f"data.continue_rows=True: {type(self).__name__} makes examples of their own; use "
            "data.converter='decoder', or a data.objective whose rows go on from each other (xlnet)"
        )

    @property
    @abc.abstractmethod
    def features(self) -> tuple[str, ...]:
        """The features of an example that it reads; the task must have exactly these."""

    def feature_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """The most tokens of each feature, from the lengths of a config."""
        return dict(lengths)

    @abc.abstractmethod
    def row_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Tokens a row on each side, from the most tokens of each feature."""

    @abc.abstractmethod
    def sequences(self, example: Example) -> Sequences:
        """The sequences of an example: on each side int32 [C, L], C aligned channels."""

    @abc.abstractmethod
    def fields(self, rows: Mapping[str, Rows]) -> Batch:
        """The fields of a batch, without segment ids and positions; [B, L] each, B may be 0."""


class GenerativeConverter(Converter):
    """A converter for networks that generate: their decoder reads the token `start` first."""

    start: int

    @classmethod
    def from_vocabulary(cls, vocabulary: Vocabulary) -> dict[str, Any]:
        """GPT-2 and BART start with the token that ends a text, LLaMA with <s>, T5 with padding."""
        return {"start": vocabulary.start_id}
