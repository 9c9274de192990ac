"""Batches from shards of examples, deterministic and resumable at any step, for any reader.

The data is divided into virtual shards, whose number is independent of the number of processes.
Each shard contributes the same number of rows to each global batch, so any number of processes
sees the same batches, and a position can be restored with a different number. The seed determines
the content of every batch.

A shard is a mixture of streams, one per task. Between two steps NumPy mixes their examples, packs
them and builds the rows. The streams of seqio tasks are in `preprocessing/pipeline.py`, the streams
that need no TensorFlow in `grain_pipeline/`.
"""

import collections
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from flax import serialization

from t5x_like.batches import packing
from t5x_like.batches.conversion import Batch, Converter, Example, Row
from t5x_like.batches.task_reading import Reader, Reading

# A mixture's tasks are sampled for this many examples at once.
_SAMPLED_AT_ONCE = 1024


class Tasks(Protocol):
    """The tasks of a data module."""

    def batches(self, *args: Any, **kwargs: Any) -> "ShardedBatches":
        """Return the batches of a task; see `preprocessing.pipeline.Batches`."""

    def rows(self, task: str, *, split: str, cleaned: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the rows of the source of a task, in order."""

    def number_of_rows(self, task: str, *, split: str) -> int:
        """Return the number of rows of the source of a task."""

    def files(self, *tasks: str) -> dict[str, list[str]]:
        """Return the files that tasks read, {"TASK/SPLIT": files in order}."""


class ShardedBatches(Iterator[Batch]):
    """An iterator over this process's rows of each global batch of a task or mixture.

    A global batch has `batch_size / shards` rows of each shard, in order. A process reads all of
    each shard that contains any of its rows. Without `reading.repeat`, the iterator ends when all
    shards are exhausted, and missing rows are filled with zeros, which have no loss. It then reads
    the tasks of a mixture one after the other, whatever their rates.

    Args:
        readers: the tasks by name.
        shares: the share of the examples from each task.
        task: the name of the task or mixture.
        reading: the settings for reading the tasks.
        batch_size: the number of rows of a global batch.
        converter: makes the batches.
        pack: whether to put several short examples into a row.
        open_rows: the number of rows per shard that examples may still be packed into.
        rows: the positions of this process's rows in a global batch, in order; None for all.
        any_process: a collective function: all processes call it, and it is True if any of them
            passes True. It makes one epoch end on all processes at the same batch; None with one
            process.
        phase: the name of the run's phase; a position can only be restored in the same phase.
        sizes: the number of tokens of each task's source; None if unknown.

    Raises:
        ValueError: a saved position does not fit; while iterating, a shard has no examples.
    """

    def __init__(
        self,
        readers: Mapping[str, Reader],
        shares: Mapping[str, float],
        *,
        task: str,
        reading: Reading,
        batch_size: int,
        converter: Converter,
        pack: bool,
        open_rows: int,
        rows: Sequence[int] | None,
        any_process: Callable[[bool], bool] | None,
        phase: str,
        sizes: Mapping[str, int | None],
    ):
        self._settings = {
            "phase": phase,
            **dataclasses.asdict(reading),
            "task": task,
            "converter": repr(converter),
            "pack": pack,
        }
        self._converter, self._lengths, self._pack = converter, reading.lengths, pack
        self._any_process, self._sizes = any_process, sizes
        own = np.arange(batch_size) if rows is None else np.asarray(rows)
        self._rows = batch_size // reading.shards
        shards, places = np.unique(own // self._rows, return_inverse=True)
        # The indices of this process's rows among the rows of these shards.
        self._own = (places * self._rows + own % self._rows).tolist()
        open_rows = open_rows if pack else 0
        make = functools.partial(
            _Shard, readers, shares, reading, converter=converter, open_rows=open_rows
        )
        self._make_shards = lambda: {n: make(shard=n) for n in shards.tolist()}
        self._shards = self._make_shards()
        self._start_counting()

    def __next__(self) -> Batch:
        """Return the next batch: [B, L] int32, and float32 for loss weights."""
        for shard in self._shards.values():
            shard.begin()  # all at once, so that their shuffle buffers fill in parallel
        parts = [shard.take(self._rows) for shard in self._shards.values()]
        more = any(parts)
        if not (self._any_process(more) if self._any_process else more):
            raise StopIteration
        self._tokens.append(self._tokens_now())
        self._batches += 1
        read = [row for part in parts for row in _padded(part, self._rows)]
        return self._batch([read[n] for n in self._own])

    def from_start(self) -> "ShardedBatches":
        """Return the same batches from the first batch, reusing the readers."""
        made = copy.copy(self)
        made._shards = made._make_shards()
        made._start_counting()
        return made

    def blank(self) -> Batch:
        """Return a batch of padding with the shapes and dtypes of all batches; reads no data."""
        return self._batch([[] for _ in self._own])

    def counts(self) -> dict[str, int]:
        """Return the number of examples of each task that this process read, over all epochs."""
        total: collections.Counter[str] = collections.Counter()
        for shard in self._shards.values():
            total.update({name: stream.examples for name, stream in shard.streams.items()})
        return dict(total)

    def sizes(self) -> dict[str, int]:
        """Return the number of tokens of each task's source, if it is known (`num_tokens`)."""
        return {task: size for task, size in self._sizes.items() if size}

    def tokens(self, *, batches: int) -> dict[int, dict[str, int]]:
        """Return {shard: {task: tokens}}, the tokens read from each shard of this process.

        It counts `inputs` and `targets` over all epochs, including examples that wait to be packed
        into a row.

        Args:
            batches: the number of batches used since the start or the last `restore`: all that
                were returned, or all but the last.
        """
        return dict(self._tokens[batches - self._batches - 1])

    def _start_counting(self) -> None:
        # Counts after the newest two batches, since the training loop reads one batch ahead.
        self._tokens = collections.deque([self._tokens_now()], maxlen=2)
        self._batches = 0

    def _tokens_now(self) -> dict[int, dict[str, int]]:
        return {
            number: {name: stream.tokens for name, stream in shard.streams.items()}
            for number, shard in self._shards.items()
        }

    def state(self) -> dict[int, bytes]:
        """Return the serialized position of each shard of this process, between two batches."""
        return {
            number: serialization.msgpack_serialize(
                {"settings": self._settings, "position": shard.state()}
            )
            for number, shard in self._shards.items()
        }

    def restore(self, state: Mapping[int, bytes]) -> None:
        """Continue from a position, saved with any number of processes.

        All settings except the batch size must be the same.

        Raises:
            ValueError: a shard is missing, or a setting or the task has changed.
        """
        for number, shard in self._shards.items():
            if number not in state:
                raise ValueError(
                    f"the data position has no shard {number}, only {sorted(state)}: set "
                    f"data.shards={self._settings['shards']} back to the number it was saved with"
                )
            saved = serialization.msgpack_restore(state[number])
            for name, now in self._settings.items():
                before = saved["settings"].get(name, "")  # older positions lack the phase
                if before != now:
                    raise ValueError(
                        f"the data position was saved with {name}={before!r} and cannot be "
                        f"restored with {name}={now!r}"
                    )
            shard.restore(saved["position"])
        self._start_counting()

    def _batch(self, rows: list[Row]) -> Batch:
        return packing.to_batch(
            rows, converter=self._converter, lengths=self._lengths, pack=self._pack
        )


class _Shard:
    """The rows of one shard: samples tasks, and converts and packs their examples."""

    def __init__(
        self,
        readers: Mapping[str, Reader],
        shares: Mapping[str, float],
        reading: Reading,
        *,
        shard: int,
        converter: Converter,
        open_rows: int,
    ):
        self.streams = {name: reader.stream(shard=shard) for name, reader in readers.items()}
        self._shares, self._seed = [shares[name] for name in readers], [reading.seed, shard]
        self._repeat, self._open_rows, self._converter = reading.repeat, open_rows, converter
        self._row_lengths = converter.row_lengths(reading.lengths)
        self._packer = packing.Packer(self._row_lengths, open_rows=open_rows)
        self._ready: list[Row] = []
        self._previous: dict[str, np.ndarray] = {}  # the last target of a row that continues
        self._examples = 0
        self._sampled: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int64))

    def begin(self) -> None:
        """Begin to read in the background, if that has not begun."""
        for stream in self.streams.values():
            stream.begin()

    def take(self, count: int) -> list[Row]:
        """Return the next `count` rows; fewer at the end if the data is not repeated."""
        while len(self._ready) < count:
            example = self._next_sampled() if self._repeat else self._next_in_turn()
            if example is None:
                self._ready += self._packer.close()
                break
            sequences = self._converter.sequences(self._continued(example))
            self._ready += self._packer.add(sequences) if self._open_rows else [[sequences]]
        taken, self._ready = self._ready[:count], self._ready[count:]
        return taken

    def state(self) -> dict[str, Any]:
        """Return the position, a tree of numbers, bytes and arrays."""
        return {
            "streams": [stream.state() for stream in self.streams.values()],
            "drawn": self._examples,
            "ready": self._ready,
            "open": self._packer.rows,
            **self._previous,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a position that an equal shard saved."""
        for stream, position in zip(self.streams.values(), state["streams"], strict=True):
            stream.restore(position)
        self._examples, self._ready = state["drawn"], state["ready"]
        self._packer = packing.Packer(
            self._row_lengths, open_rows=self._open_rows, rows=state["open"]
        )
        self._previous = {name: state[name] for name in ("previous",) if name in state}

    def _continued(self, example: Example) -> Example:
        """Add the previous token to an example, if rows continue from batch to batch."""
        if not self._converter.continues:
            return example
        before, self._previous = self._previous, {"previous": example["targets"][-1:]}
        return {**example, **before}

    def _next_sampled(self) -> Example | None:
        """Return the next example of a task sampled by the seed and the number of examples."""
        block, index = divmod(self._examples, _SAMPLED_AT_ONCE)
        if block != self._sampled[0]:
            generator = np.random.default_rng([*self._seed, block])
            tasks = generator.choice(len(self._shares), size=_SAMPLED_AT_ONCE, p=self._shares)
            self._sampled = block, tasks
        self._examples += 1
        return [*self.streams.values()][self._sampled[1][index]].next()

    def _next_in_turn(self) -> Example | None:
        examples = (stream.next() for stream in self.streams.values())
        return next((example for example in examples if example is not None), None)


def _padded(rows: list[Row], count: int) -> list[Row]:
    return rows + [[] for _ in range(count - len(rows))]
