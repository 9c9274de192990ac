"""Make the rows of a batch: short examples packed together, with segment ids and positions."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Int

from t5x_like.batches.conversion import Converter, NumpyBatch, SequenceRow, SequenceRows, Sequences


class Packer:
    """Packs short examples into rows: first fit, among a few open rows.

    Segment ids distinguish the examples of a row. An example that fits no open row opens a new row,
    and the oldest row is closed. Examples keep their order within a row; none is split or lost.
    """

    def __init__(
        self,
        row_lengths: Mapping[str, int],
        *,
        open_rows: int = 16,
        rows: Iterable[SequenceRow] = (),
    ):
        """Start with some open rows; with `open_rows` = 1 examples keep their order across rows."""
        self.rows: list[SequenceRow] = list(rows)
        self._row_lengths = dict(row_lengths)
        self._limit = open_rows
        self._free = [self._free_in(row) for row in self.rows]

    def add(self, sequences: Sequences) -> list[SequenceRow]:
        """Add the sequences of an example; return the rows that this closes."""
        sizes = {side: sequences[side].shape[1] for side in self._row_lengths}
        for row, free in zip(self.rows, self._free, strict=True):
            if all(size <= free[side] for side, size in sizes.items()):
                row.append(sequences)
                for side, size in sizes.items():
                    free[side] -= size
                return []
        self.rows.append([sequences])
        self._free.append(self._free_in([sequences]))
        over = max(0, len(self.rows) - self._limit)
        closed, self.rows, self._free = self.rows[:over], self.rows[over:], self._free[over:]
        return closed

    def close(self) -> list[SequenceRow]:
        """Return the rows that are still open."""
        rows, self.rows, self._free = self.rows, [], []
        return rows

    def _free_in(self, row: SequenceRow) -> dict[str, int]:
        return {
            side: length - sum(sequences[side].shape[1] for sequences in row)
            for side, length in self._row_lengths.items()
        }


def to_batch(
    rows: Sequence[SequenceRow], *, converter: Converter, lengths: Mapping[str, int], pack: bool
) -> NumpyBatch:
    """Lay out rows of examples as a batch.

    Args:
        rows: the sequences of each row's examples; an empty row is padding, with no loss.
        converter: the converter that made the sequences.
        lengths: the most tokens of each feature.
        pack: add `<side>_segment_ids` and, unless the converter makes them, `<side>_positions`;
            without it a row has one example.

    Returns:
        The converter's fields, [B, L] with B = len(rows), int32 or float32 (loss weights).
    """
    nothing = converter.sequences({name: np.zeros(0, np.int32) for name in converter.features})
    sides = {}
    for side, length in converter.row_lengths(lengths).items():
        sequences = [[example[side] for example in row] for row in rows]
        sides[side] = _lay_out(sequences, length=length, channels=len(nothing[side]))
    batch = converter.fields(sides)
    if pack:
        for side, laid_out in sides.items():
            batch[f"{side}_segment_ids"] = laid_out.segment_ids
            batch.setdefault(f"{side}_positions", laid_out.positions)
    return batch


def _lay_out(
    rows: Sequence[Sequence[Int[np.ndarray, "C L"]]], *, length: int, channels: int
) -> SequenceRows:
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
    return SequenceRows(out, segment_ids, positions)
