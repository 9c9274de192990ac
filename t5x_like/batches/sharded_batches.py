"""Batches from shards of examples, deterministic and resumable at any step, for any reader."""

import collections
import copy
import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from flax import serialization

from t5x_like.batches import packing
from t5x_like.batches.conversion import Converter, Example, NumpyBatch, SequenceRow
from t5x_like.batches.converters import OF_AN_EXAMPLE


class NoExampleError(ValueError):
    """A shard of the data has no example."""

    def __init__(self, task: str, reading: "Reading", *, shard: int):
        super().__init__(
            f"shard {shard} of {reading.shards} of split {reading.split!r} of task {task!r} has no "
            "example: set fewer data.shards, or check what its preprocessors drop"
        )


@dataclasses.dataclass(frozen=True)
class Reading:
    """The settings for reading a task.

    Attributes:
        split: the split of the task.
        lengths: the largest number of tokens of each feature.
        seed: the seed of the order and the noise.
        shuffle: whether to shuffle files and examples.
        repeat: whether to continue with further epochs endlessly.
        shuffle_buffer: the number of examples in the shuffle buffers of all shards together.
        shards: the number of shards of the data.
    """

    split: str
    lengths: Mapping[str, int]
    seed: int
    shuffle: bool
    repeat: bool
    shuffle_buffer: int
    shards: int

    def seed_for(self, task: str, *use: int) -> int:
        """Derive a seed of 31 bits from the run's seed, the name of the task and the use."""
        sequence = np.random.SeedSequence([self.seed, zlib.crc32(task.encode()), *use])
        return int(sequence.generate_state(1)[0] >> 1)


class Stream(Protocol):
    """The examples of one shard of one task, epoch after epoch.

    Attributes:
        examples: the number of examples returned so far.
        tokens: the number of tokens in their inputs and targets.
    """

    examples: int
    tokens: int

    def begin(self) -> None:
        """Begin to read in the background, if that has not begun."""

    def next(self) -> Example | None:
        """Return the next example; None at the end if the data is not repeated."""

    def state(self) -> dict[str, Any]:
        """Return the position, a tree of numbers, bytes and arrays."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a position that an equal stream saved."""


class ShardReader(Protocol):
    """A task with the settings for reading it."""

    def stream(self, *, shard: int) -> Stream:
        """Return a stream of the examples of a shard, from the first example."""


def check_numbers(**numbers: int) -> None:
    """Raise ValueError unless the numbers, settings of `data`, are 1 or more, a seed 0 or more."""
    for name, number in numbers.items():
        least = 0 if name == "seed" else 1
        if number < least:
            raise ValueError(f"data.{name}={number} must be {least} or more")


def check_continued(
    converter: Converter,
    *,
    task: str,
    mixture: bool,
    batch_size: int,
    shards: int,
    mixed: bool,
) -> None:
    """Raise ValueError if the converter's rows continue each other and the settings prevent it."""
    problem = ""
    if mixed:
        problem = "rows are neither packed nor shuffled: set data.pack=False"
    elif mixture:
        problem = f"data.task={task!r} is a mixture, whose tasks would take turns in a row"
    elif shards != batch_size:
        problem = (
            f"each row is a shard, and data.batch_size={batch_size} cannot differ from "
            f"data.shards={shards}, which stays the same in all parts of a run"
        )
    if converter.continues and problem:
        raise ValueError(f"data.continue_rows=True: {problem}")


def check_shards(shards: int, *, batch_size: int, rows: Sequence[int] | None = None) -> None:
    """Raise ValueError unless the shards divide the batch and the rows of this process exist."""
    if shards < 1 or batch_size % shards:
        fitting = [str(n) for n in range(1, batch_size + 1) if batch_size % n == 0]
        raise ValueError(
            f"data.shards={shards} does not divide data.batch_size={batch_size}: set one of "
            f"{', '.join(fitting)}"
        )
    if rows is not None and not (len(rows) and min(rows) >= 0 and max(rows) < batch_size):
        raise ValueError(f"rows={list(rows)} must be some of the {batch_size} of a batch")


# A mixture's tasks are sampled for this many examples at once.
_SAMPLED_AT_ONCE = 1024


class Tasks(Protocol):
    """The tasks of a data module."""

    def batches(self, *args: Any, **kwargs: Any) -> "ShardedBatches":
        """Return the batches of a task; see `preprocessing.pipeline.SeqioBatches`."""

    def rows(self, task: str, *, split: str, cleaned: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the rows of the source of a task, in order."""

    def number_of_rows(self, task: str, *, split: str) -> int:
        """Return the number of rows of the source of a task."""

    def files(self, *tasks: str) -> dict[str, list[str]]:
        """Return the files that tasks read, {"TASK/SPLIT": files in order}."""


class ShardedBatches(Iterator[NumpyBatch]):
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
        any_process: a collective function: all processes call it, and it is True if any process
            passes True. It makes one epoch end on all processes at the same batch; None with one
            process.
        phase: the name of the run's phase; a position can only be restored in the same phase.
        sizes: the number of tokens of each task's source; None if unknown.

    Raises:
        ValueError: a saved position does not fit; while iterating, a shard has no examples.
    """

    def __init__(
        self,
        readers: Mapping[str, ShardReader],
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
            "converter": converter.identity,
            "pack": pack,
        }
        self._converter, self._lengths, self._pack = converter, reading.lengths, pack
        self._any_process, self._sizes = any_process, sizes
        process_rows = np.arange(batch_size) if rows is None else np.asarray(rows)
        self._rows = batch_size // reading.shards
        shards, shard_numbers = np.unique(process_rows // self._rows, return_inverse=True)
        # The indices of this process's rows among the rows of its shards.
        self._row_indices = (shard_numbers * self._rows + process_rows % self._rows).tolist()
        open_rows = open_rows if pack else 0
        make = functools.partial(
            _Shard, readers, shares, reading, converter=converter, open_rows=open_rows
        )
        self._make_shards = lambda: {n: make(shard=n) for n in shards.tolist()}
        self._shards = self._make_shards()
        self._start_counting()

    def __next__(self) -> NumpyBatch:
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
        return self._batch([read[n] for n in self._row_indices])

    def from_start(self) -> "ShardedBatches":
        """Return the same batches from the first batch, reusing the readers."""
        batches = copy.copy(self)
        batches._shards = batches._make_shards()
        batches._start_counting()
        return batches

    def has_example(self) -> bool:
        """Return whether any process has an example; it reads one, and must be called on all."""
        any_here = any(shard.take(1) for shard in self._shards.values())
        return self._any_process(any_here) if self._any_process else any_here

    def notes(self) -> list[str]:
        """Return warnings about how the data are read; [] if there are none."""
        return []

    def blank(self) -> NumpyBatch:
        """Return a batch of padding with the shapes and dtypes of all batches; reads no data."""
        return self._batch([[] for _ in self._row_indices])

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
                if name == "lengths" and before:  # ... and features that examples got later
                    later = OF_AN_EXAMPLE.keys() - before
                    now = {feature: now[feature] for feature in now if feature not in later}
                if before != now:
                    raise ValueError(
                        f"the data position was saved with {name}={before!r} and cannot be "
                        f"restored with {name}={now!r}"
                    )
            shard.restore(saved["position"])
        self._start_counting()

    def _batch(self, rows: list[SequenceRow]) -> NumpyBatch:
        return packing.to_batch(
            rows, converter=self._converter, lengths=self._lengths, pack=self._pack
        )


class _Shard:
    """The rows of one shard: samples tasks, and converts and packs their examples."""

    def __init__(
        self,
        readers: Mapping[str, ShardReader],
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
        self._ready: list[SequenceRow] = []
        self._previous: dict[str, np.ndarray] = {}  # the last target of a row that continues
        self._examples = 0
        self._sampled: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int64))

    def begin(self) -> None:
        """Begin to read in the background, if that has not begun."""
        for stream in self.streams.values():
            stream.begin()

    def take(self, count: int) -> list[SequenceRow]:
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


def _padded(rows: list[SequenceRow], count: int) -> list[SequenceRow]:
    return rows + [[] for _ in range(count - len(rows))]
