"""A seqio source of rows in memory, stored as columns; for benchmarks, labelled, prompted files."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import seqio
import tensorflow as tf

Columns: TypeAlias = "Mapping[str, tf.Tensor | tf.RaggedTensor]"
_TYPES = {str: tf.string, int: tf.int32, float: tf.float32}


def columns(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Turn rows with the same fields into columns, [N] or [N, (M)] for lists.

    Values are strings, integers, numbers, or lists of strings or integers.
    """
    return {name: _column([row[name] for row in rows]) for name in rows[0]}


def _column(values: Sequence[Any]) -> tf.Tensor | tf.RaggedTensor:
    if not isinstance(values[0], list):
        return tf.constant(values, _TYPES[type(values[0])])
    flat = [one for value in values for one in value]
    kind = _TYPES[type(flat[0])] if flat else tf.string
    return tf.RaggedTensor.from_row_lengths(tf.constant(flat, kind), [len(v) for v in values])


def row_source(splits: Mapping[str, Sequence[Mapping[str, Any]]]) -> "ColumnSource":
    """Return a source of rows by split; an empty split gets the fields of another split."""
    filled = columns(next(rows for rows in splits.values() if rows))
    none = {field: column[:0] for field, column in filled.items()}
    return ColumnSource(
        lambda split: columns(splits[split]) if splits[split] else none, splits=tuple(splits)
    )


class ColumnSource(seqio.DataSource):
    """A source of rows that are kept in memory.

    Args:
        read: split -> its columns, all of the same length; called when the split is first read.
        splits: the names of the splits.
    """

    def __init__(self, read: Callable[[str], Columns], *, splits: Sequence[str]):
        super().__init__(splits=splits)
        self._read = functools.cache(read)

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """True: a shard is every n-th row."""
        return True

    def list_shards(self, split: str) -> Sequence[str]:
        """Return the split itself as the only shard; raise ValueError if it cannot be read."""
        self._read(split)
        return [split]

    def num_input_examples(self, split: str) -> int:
        """Return the number of rows of a split."""
        return int(next(iter(self._read(split).values())).shape[0])

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **unused: Any,
    ) -> tf.data.Dataset:
        """Return the rows of a split, or of one shard of it."""
        del unused  # seqio also passes settings that only tasks use
        found, size = self._read(split), self.num_input_examples(split)
        # Shuffle indices, so that the data position in a checkpoint contains no text.
        numbers = tf.data.Dataset.range(size)
        if shuffle:
            numbers = numbers.shuffle(max(size, 1), seed=seed)
        if shard_info:
            numbers = numbers.shard(shard_info.num_shards, shard_info.index)
        return numbers.map(lambda n: {name: tf.gather(own, n) for name, own in found.items()})
