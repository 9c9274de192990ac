"""Read the examples of one shard of one task, epoch after epoch, starting from any position.

A position contains the state of a tf.data iterator as bytes.
"""

import collections
import functools
import logging
import math
import pathlib
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5x_like.batches.conversion import Example
from t5x_like.batches.sharded_batches import NoExampleError, Reading
from t5x_like.preprocessing import line_datasets, tracing

_PARTS = "parts"  # key of the serialized state
# Pieces of the state that are serialized together. A shuffle buffer has thousands of pieces, and
# one call per piece takes seven times as long; but a serialized tensor is limited to 2 GB.
_TOGETHER = 256

_log = logging.getLogger(__name__)


def save(iterator: Any, *, task: str) -> dict[str, Any] | None:
    """Serialize the state of an iterator in memory, so that a full disk does not matter.

    Args:
        iterator: an iterator of a tf.data dataset.
        task: the name of its task, for the warning.

    Returns:
        The state; None if tf.data cannot save it.
    """
    try:
        state = tf.raw_ops.SerializeIterator(
            resource_handle=iterator._iterator_resource,
            # The same policy that `TaskReader.blocks` sets for these datasets.
            external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE.value,
        )
    except tf.errors.UnimplementedError as error:
        _warn_of_replay(task, error.message)
        return None
    starts = range(0, len(state), _TOGETHER)
    return {
        _PARTS: [tf.io.serialize_tensor(state[n : n + _TOGETHER]).numpy() for n in starts],
    }


@functools.cache
def _warn_of_replay(task: str, reason: str) -> None:
    _log.warning(
        "Positions of task %r are restored by reading its epoch again up to there, since its "
        "tf.data pipeline cannot be saved: %s",
        task,
        reason,
    )


def load(iterator: Any, saved: Mapping[str, Any]) -> None:
    """Restore into an equal iterator a state that `save` returned."""
    if _PARTS in saved:
        parts = [tf.io.parse_tensor(part, tf.variant) for part in saved[_PARTS]]
        pieces = [piece for part in parts for piece in tf.unstack(part)]
        tf.raw_ops.DeserializeIterator(
            resource_handle=iterator._iterator_resource, serialized=tf.stack(pieces)
        )
        return
    # Older positions contain the files of a checkpoint.
    with tempfile.TemporaryDirectory() as folder:
        for name, content in saved.items():
            pathlib.Path(folder, name).write_bytes(content)
        tf.train.Checkpoint(iterator=iterator).read(f"{folder}/iterator").assert_consumed()


# The version of positions. In the first, objectives were operations of the dataset's graph.
_VERSION = 2

_MANY_FILES = 20  # of a shard, from which on one more changes little
# At each epoch of each shard seqio warns that restarts repeat data, which is not true here.
logging.getLogger("absl").addFilter(
    lambda record: "an uncached FunctionDataset" not in record.getMessage()
)


class TaskReader:
    """Makes a tf.data dataset for any epoch of any shard of a task.

    The preprocessors are traced once for all readers that share them; the source's examples and the
    seeds, which differ between epochs and shards, are arguments of the traced function.

    Args:
        task: a seqio task; it need not be registered.
        reading: the settings for reading it.
        features: the names of the features to keep; each is int32 [L].
    """

    def __init__(self, task: seqio.Task, *, reading: Reading, features: tuple[str, ...]):
        self.task, self.reading = task, reading
        self._features = features

    def stream(self, *, shard: int) -> "TaskStream":
        """Return a stream of the examples of a shard, from the first example."""
        return TaskStream(self, shard=shard)

    def _files_of_source(self) -> int:
        return len(self.task.source.list_shards(self.reading.split))

    def notes(self) -> list[str]:
        """Return a note if the shards have unequal numbers of few files, which each repeats."""
        files, shards = self._files_of_source(), self.reading.shards
        few, more = divmod(files, shards)
        if self.task.source.supports_arbitrary_sharding or not more or not 0 < few < _MANY_FILES:
            return []
        return [
            f"{self.task.name}: {files} files in {shards} shards (data.shards, by default one for "
            f"each device): a shard repeats its {few} or {few + 1} files, and examples of the "
            f"former come {(few + 1) / few:.2g} times as often; data.shards="
            f"{math.gcd(files, shards)} would read all equally often"
        ]

    def source(self, *, shard: int, epoch: int) -> tf.data.Dataset:
        """Return the source's examples for one shard: some of its files, or every n-th example.

        Keep a reference to the result while blocks made from it are in use: it owns their Python
        functions.
        """
        source, shards = self.task.source, self.reading.shards
        # All shards have the same seed, since they divide one order of examples.
        read = functools.partial(
            source.get_dataset,
            split=self.reading.split,
            shuffle=self.reading.shuffle,
            seed=self.reading.seed_for(self.task.name, epoch),
        )
        if self._files_of_source() >= shards or source.supports_arbitrary_sharding:
            return read(shard_info=seqio.ShardInfo(index=shard, num_shards=shards))
        return read().shard(shards, shard)

    def blocks(
        self,
        source: tf.data.Dataset,
        *,
        shard: int,
        epoch: int,
        skip: int,
        at_once: bool,
    ) -> tf.data.Dataset:
        """Return the examples after the first `skip`, in blocks: {feature: ragged [N, (L)]}.

        With `at_once`, an iterator begins to read in the background when it is created.
        """
        seed_for = functools.partial(self.reading.seed_for, self.task.name)
        dataset = self._preprocess(
            source,
            noise_seed=tf.constant(seed_for(epoch, shard, 1), tf.int64),
            order_seed=tf.constant(seed_for(epoch, shard, 2), tf.int64),
            skip=tf.constant(skip, tf.int64),
        )
        options = tf.data.Options()
        options.deterministic = True
        # Only shuffle buffers are worth filling ahead. If each row has its own shard, as with rows
        # that continue, many iterators that start at once can deadlock.
        options.experimental_warm_start = at_once and self.reading.shuffle
        # An iterator's autotuning sleeps, twice as long each time, and deleting it waits for that.
        # Without autotuning, as many examples are preprocessed in parallel as there are cores.
        options.autotune.enabled = False
        # Rewriting the graph takes most of the time of creating an iterator (50 ms of 60), and
        # speeds up nothing here.
        options.experimental_optimization.apply_default_optimizations = False
        # Vocabularies (resources) and counters (Python) do not affect the next examples.
        options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
        return dataset.with_options(options)

    def files(self) -> Iterator[str]:
        """Return the files of the task's source, if it has any."""
        return line_datasets.files_of(self.task.source, self.reading.split)

    @property
    def buffer(self) -> int:
        """The number of examples in the shuffle buffer of one shard."""
        return -(-self.reading.shuffle_buffer // self.reading.shards)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of the files and preprocessors, since tf.data does not check that they match."""
        files = self._files_of_source()
        version = getattr(self.task.source, "position_version", "")
        operations = tracing.hash_of_operations(self._preprocess.graph.as_graph_def())
        return f"{version}{files}-{operations:08x}"

    @functools.cached_property
    def _preprocess(self) -> Any:
        shuffled = self.reading.shuffle and self.task.shuffle_buffer_size is not None
        return tracing.blocks_of(
            tracing.Preprocessing(
                preprocessors=tuple(
                    step
                    for step in self.task.preprocessors
                    # It would change the seeds that seqio gives to the preprocessors after it.
                    if not isinstance(step, seqio.CacheDatasetPlaceholder)
                ),
                output_features=tuple(self.task.output_features.items()),
                lengths=tuple(self.reading.lengths.items()),
                features=self._features,
                buffer=self.buffer if shuffled else None,
                examples=tf.data.DatasetSpec(self.source(shard=0, epoch=0).element_spec),
            )
        )


class TaskStream:
    """An iterator over the examples of one shard of one task.

    Attributes:
        task: the task of the examples.
        examples: the number of examples returned so far.
        tokens: the number of tokens in their inputs and targets.
    """

    def __init__(self, reader: TaskReader, *, shard: int):
        self.task, self.examples, self.tokens = reader.task, 0, 0
        self._reader, self._shard = reader, shard
        self._epoch = self._fetched = 0
        self._last_size = 0
        self._current: _Opened | None = None
        self._upcoming: _Opened | None = None
        self._waiting: collections.deque[Example] = collections.deque()

    def begin(self) -> None:
        """Begin to read in the background, if that has not begun."""
        if self._current is None:
            self._current = self._open(self._epoch, skip=self._fetched)

    def next(self) -> Example | None:
        """Return the next example; None at the end if the data is not repeated.

        Raises:
            ValueError: the data is to be repeated, but the shard has no examples.
            FileError: a file is damaged, or one of its rows lacks a field.
        """
        while not self._waiting:
            self.begin()
            assert self._current is not None  # for the type checker
            with line_datasets.file_errors(self._reader.files()):
                block = next(self._current.iterator, None)
            if block is not None:
                self._waiting += _examples(block)
                self._fetched += len(self._waiting)
                self._begin_next_epoch_early()
            elif self._reader.reading.repeat:
                self._end_epoch()
            else:
                return None
        example = self._waiting.popleft()
        self.examples += 1
        self.tokens += sum(len(example[name]) for name in ("inputs", "targets") if name in example)
        return example

    def state(self) -> dict[str, Any]:
        """Return the position, a tree of numbers, bytes and arrays."""
        return {
            "epoch": self._epoch,
            "fetched": self._fetched,
            "last_size": self._last_size,
            "drawn": self.examples,
            "tokens": self.tokens,
            "waiting": list(self._waiting),
            "iterator": self._current and save(self._current.iterator, task=self.task.name),
            "version": _VERSION,
            "fingerprint": self._reader.fingerprint,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a position that an equal stream saved.

        A position of an earlier version has no state of an iterator that fits: the epoch is read
        again up to the same number of examples.

        Raises:
            ValueError: the task's files or preprocessors have changed since it was saved.
        """
        name, now, before = self.task.name, self._reader.fingerprint, state["fingerprint"]
        older = state.get("version", 1) < _VERSION
        if before != now and not (older and _source_of(before) == _source_of(now)):
            raise ValueError(
                f"the data position of task {name!r} cannot be restored: the number of "
                "files, the preprocessors, whether data.tokenized is set, or TensorFlow have "
                "changed since it was saved"
            )
        self._epoch, self._fetched, self.examples = state["epoch"], state["fetched"], state["drawn"]
        self._last_size = state["last_size"]
        self.tokens = state.get("tokens", 0)  # older positions lack it
        self._waiting = collections.deque(state["waiting"])
        self._current = self._upcoming = None  # reopened below, or by `begin` with a replay
        if older:
            logging.warning(
                "the data position of task %r is of an earlier version: epoch %d is read again up "
                "to its example %d, and later noise is sampled anew",
                *(name, self._epoch, self._fetched),
            )
        elif state["iterator"] is not None:
            self._current = self._open(self._epoch, at_once=False)
            load(self._current.iterator, state["iterator"])

    def _open(self, epoch: int, *, skip: int = 0, at_once: bool = True) -> "_Opened":
        source = self._reader.source(shard=self._shard, epoch=epoch)
        blocks = self._reader.blocks(
            source, shard=self._shard, epoch=epoch, skip=skip, at_once=at_once
        )
        return _Opened(blocks, source)

    def _begin_next_epoch_early(self) -> None:
        """Fill the next epoch's shuffle buffer near the end of this epoch, if its size is known."""
        near_end = self._last_size and self._fetched >= self._last_size - self._reader.buffer
        if self._reader.reading.repeat and near_end and self._upcoming is None:
            self._upcoming = self._open(self._epoch + 1)

    def _end_epoch(self) -> None:
        reading = self._reader.reading
        if not self._fetched:
            raise NoExampleError(self.task.name, reading, shard=self._shard)
        self._epoch, self._last_size, self._fetched = self._epoch + 1, self._fetched, 0
        self._current, self._upcoming = self._upcoming, None


class _Opened:
    """An iterator over blocks, with references to the datasets that it needs."""

    def __init__(self, blocks: tf.data.Dataset, source: tf.data.Dataset):
        self.iterator = iter(blocks)
        # Runs when this object is deleted, at the latest when Python exits.
        weakref.finalize(self, _stop, self.iterator, blocks, source)


def _source_of(fingerprint: str) -> str:
    """Return the part of a fingerprint that describes the files, without the preprocessors."""
    return fingerprint.rpartition("-")[0]


def _stop(iterator: Any, blocks: tf.data.Dataset, source: tf.data.Dataset) -> None:
    """Stop an iterator's background work, so that it can be deleted.

    Deleting an iterator waits for its background work while holding Python's global lock: a
    deadlock, if a Python function is part of that work. This operation waits without the lock.
    """
    del source  # an argument only to keep it alive until now
    # The garbage collector may call this while a function is traced. Run outside of that graph,
    # which would otherwise record these operations without stopping anything.
    with tf.init_scope():
        nothing = blocks.take(0)
        tf.raw_ops.MakeIterator(
            dataset=tf.data.experimental.to_variant(nothing), iterator=iterator._iterator_resource
        )


def _examples(block: Mapping[str, Any]) -> list[Example]:
    """Split [N, (L)] tensors, ragged or not, into N examples of [L] arrays that share memory."""
    columns = {}
    for name, values in block.items():
        if isinstance(values, tf.RaggedTensor):
            ends = values.row_splits.numpy()[1:-1]
            columns[name] = np.split(values.flat_values.numpy(), ends)
        else:
            columns[name] = list(values.numpy())
    return [
        dict(zip(columns, example, strict=True)) for example in zip(*columns.values(), strict=True)
    ]
