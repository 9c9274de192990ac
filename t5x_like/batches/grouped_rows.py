"""Converters for examples of several rows: both orders of two texts, or a row for each choice."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from t5x_like.batches.conversion import Converter, Example, NumpyBatch, SequenceRows, Sequences


@dataclasses.dataclass(frozen=True)
class DecoderRows(Converter):
    """One or more decoder rows per example, and its label (Radford et al. 2018, section 3.3).

    `inputs` are the tokens of all rows, one row after the other; `row_numbers`, 1, 2, ..., are the
    rows that they belong to. They become `decoder_input_tokens` and `decoder_segment_ids`, int32
    [B, C, L], with L = `lengths.inputs` tokens per row.

    Attributes:
        rows: the most rows of an example, C.
        target: the feature of a whole example: `label`, int32 [B], or `value`, float32 [B].
    """

    rows: int = 1
    target: str = "label"

    side: ClassVar[str] = "decoder"
    aligned: ClassVar[tuple[str, ...]] = ()  # further features, with one value per token

    @property
    def features(self) -> tuple[str, ...]:
        """Tokens, the numbers of their rows, other aligned features, and the target."""
        return ("inputs", "row_numbers", *self.aligned, self.target)

    def feature_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Return the lengths; tokens of all rows are counted together."""
        size = self.rows * lengths.get("inputs", 0)
        aligned = dict.fromkeys(("inputs", "row_numbers", *self.aligned), size)
        return {**lengths, **aligned, self.target: 1}

    def row_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Return the sides from the features' lengths: all rows together, and the target."""
        return {self.side: lengths["inputs"], self.target: 1}

    def sequences(self, example: Example) -> Sequences:
        """Return a channel per aligned feature, and the target; a float as its float32's bits."""
        tokens = np.stack([example[name] for name in self.features[:-1]])
        target = example[self.target]
        if self.target == "value":
            target = target.astype(np.float32).view(np.int32)
        return {self.side: tokens, self.target: target[None]}

    def fields(self, rows: Mapping[str, SequenceRows]) -> NumpyBatch:
        """Separate the rows, each padded at its end."""
        tokens, numbers, *others = rows[self.side].channels
        separated, segments = one_by_one(np.stack([tokens, *others]), numbers, rows=self.rows)
        names = ("input_tokens", *self.aligned)
        batch = {f"{self.side}_{name}": x for name, x in zip(names, separated, strict=True)}
        target = rows[self.target].channels[0][:, 0]
        batch[f"{self.side}_segment_ids"] = segments
        return batch | {self.target: target.view(np.float32) if self.target == "value" else target}


def one_by_one(
    channels: Int[np.ndarray, "C B N"], numbers: Int[np.ndarray, "B N"], *, rows: int
) -> tuple[Int[np.ndarray, "C B R L"], Int[np.ndarray, "B R L"]]:
    """Separate the rows of examples, which follow each other, and pad each at its end.

    Args:
        numbers: 1, 2, ..., the row that each position belongs to; 0 on padding.
        rows: the most rows of an example, R; each has at most L = N / R positions.

    Returns:
        The channels, 0 on padding; and the segment ids, 1 except on padding.
    """
    shape = [numbers.shape[0], rows, numbers.shape[1] // rows]
    separated = np.zeros([len(channels), *shape], np.int32)
    segments = np.zeros(shape, np.int32)
    for row in range(rows):
        here = numbers == row + 1
        segments[:, row] = np.arange(shape[-1]) < here.sum(axis=1, keepdims=True)
        for field, values in zip(separated, channels, strict=True):
            field[:, row][segments[:, row] > 0] = values[here]
    return separated, segments


@dataclasses.dataclass(frozen=True)
class EncoderRows(DecoderRows):
    """One or more encoder rows per example, and its label (Devlin et al. 2018, section 4.4).

    Like `DecoderRows`, with `encoder_input_tokens`, `encoder_token_types`, `encoder_segment_ids`.
    """

    side: ClassVar[str] = "encoder"
    aligned: ClassVar[tuple[str, ...]] = ("token_types",)
