"""A seqio source of rows that are checked, and kept in memory."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

Rows = Sequence[Mapping[str, Any]]
_TYPES = {str: tf.string, int: tf.int32, float: tf.float32}


class RowSource(seqio.DataSource):
    """Rows with the same fields: strings, numbers, or lists of strings.

    Args:
        rows: split -> its rows; called when the split is first read.
        splits: the names of the splits.
    """

    def __init__(self, rows: Callable[[str], Rows], *, splits: Sequence[str]):
        super().__init__(splits=splits)
        self._rows = rows
        self._columns = functools.cache(self._columns_of)

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """True: a shard is every n-th row."""
        return True

    def list_shards(self, split: str) -> Sequence[str]:
        """One, the split itself; raises ValueError if it cannot be read."""
        self._columns(split)
        return [split]

    def num_input_examples(self, split: str) -> int:
        """The number of rows of a split."""
        return len(self._rows(split))

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **unused: Any,
    ) -> tf.data.Dataset:
        """The rows of a split, or of one shard of it."""
        del unused  # seqio also passes settings that only tasks use
        columns, size = self._columns(split), self.num_input_examples(split)
        # Numbers, so that the data position in a checkpoint contains no text.
        numbers = tf.data.Dataset.range(size)
        if shuffle:
            numbers = numbers.shuffle(size, seed=seed)
        if shard_info:
            numbers = numbers.shard(shard_info.num_shards, shard_info.index)
        return numbers.map(lambda n: {name: tf.gather(own, n) for name, own in columns.items()})

    def _columns_of(self, split: str) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        rows = self._rows(split)
        return {name: _column([row[name] for row in rows]) for name in rows[0]}


def _column(values: Sequence[Any]) -> tf.Tensor | tf.RaggedTensor:
    """The values of a field, [N], or [N, (M)] for lists of strings."""
    if not isinstance(values[0], list):
        return tf.constant(values, _TYPES[type(values[0])])
    flat = tf.constant([one for value in values for one in value], tf.string)
    return tf.RaggedTensor.from_row_lengths(flat, [len(value) for value in values])
