"""Batches of a task or mixture for each process, deterministic and resumable at any step.

The data is divided into virtual shards, whose number is independent of the number of processes.
Each shard contributes the same number of rows to each global batch, so any number of processes
sees the same batches, and a position can be restored with another number of processes. The seed
determines the content of every batch.

A shard is a mixture of streams, one per task. tf.data reads and preprocesses in the background;
NumPy mixes examples, packs them and builds the rows between two steps.
"""

import collections
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import seqio
from flax import serialization

from t5x_like.batches import converters, packing
from t5x_like.batches.conversion import Batch, Converter, Example, Row
from t5x_like.names import hint
from t5x_like.preprocessing import cleaning, mixtures
from t5x_like.preprocessing.streams import Reading, TaskReader, TaskStream

# A mixture's tasks are sampled for this many examples at once.
_SAMPLED_AT_ONCE = 1024
# The least size of the shuffle buffers of a task with a small share in a mixture, over all shards.
_LEAST_BUFFER = 1000


class Batches(Iterator[Batch]):
    """An iterator over this process's rows of each global batch of a task or mixture.

    These are the rows of the shards in `shard_range`, `batch_size / shards` of each, in order.
    Without `repeat`, the iterator ends when all shards are exhausted, and missing rows are rows of
    zeros, which have no loss. It then reads the tasks of a mixture one after the other, whatever
    their rates.

    Args:
        task: the name of a registered seqio Task or Mixture.
        split: the split of the task.
        batch_size: the number of rows of a global batch.
        lengths: the largest number of tokens of each feature.
        converter: a feature converter, or the name of one.
        pack: whether to put several short examples into a row.
        open_rows: of each shard, rows that examples may still be packed into.
        seed: the seed of the order, the noise and the mixture; 0 or more.
        shuffle: False keeps the order of the source within a shard.
        repeat: whether to continue without end, in epochs of another order and other noise; False
            for one epoch.
        shuffle_buffer: the number of examples in the shuffle buffers of all shards together.
        shards: the number of shards of the data: a multiple of every number of processes with
            which the run may continue, and at most the number of documents.
        shard_range: the first shard of this process, and the one after its last; None for all.
        any_process: a collective function: with all processes calling it, True if any of them
            passes True. It makes one epoch end on all processes at the same batch; None with one
            process.
        phase: the name of the run's phase; a position can only be restored in the same phase.

    Raises:
        ValueError: the task, split or converter is unknown, the features do not suit the
            converter, a length is missing, or numbers do not divide; while iterating, a shard has
            no examples.
    """

    def __init__(
        self,
        task: str,
        *,
        split: str,
        batch_size: int,
        lengths: Mapping[str, int],
        converter: str | Converter = "encoder_decoder",
        pack: bool = False,
        open_rows: int = 16,
        seed: int = 0,
        shuffle: bool = True,
        repeat: bool = True,
        shuffle_buffer: int = 10_000,
        shards: int = 1,
        shard_range: tuple[int, int] | None = None,
        any_process: Callable[[bool], bool] | None = None,
        phase: str = "",
    ):
        first, after_last = shard_range or (0, shards)
        _check_numbers(seed=seed, shuffle_buffer=shuffle_buffer, batch_size=batch_size)
        _check_shards(shards, batch_size=batch_size, first=first, after_last=after_last)
        provider = find(task, split=split)
        if isinstance(converter, str):
            converter = converters.build(converter)
        features = list(provider.output_features)
        converters.check(converter, features=features, lengths=lengths, pack=pack)
        mixed = pack or shuffle
        _check_continued(converter, provider, batch_size=batch_size, shards=shards, mixed=mixed)
        lengths = converter.feature_lengths(lengths)
        reading = Reading(split, lengths, seed, shuffle, repeat, shuffle_buffer, shards)
        self._settings = {
            "phase": phase,
            **dataclasses.asdict(reading),
            "task": task,
            "converter": repr(converter),
            "pack": pack,
        }
        self._converter, self._lengths, self._pack = converter, lengths, pack
        self._any_process = any_process
        self._rows = batch_size // shards
        shares = mixtures.shares(provider, split=split)
        readers = {
            task.name: TaskReader(
                task,
                reading=_with_buffer_share(reading, shares[task.name]),
                features=converter.features,
            )
            for task in (provider.tasks if isinstance(provider, seqio.Mixture) else [provider])
            if task.name in shares
        }
        for reader in readers.values():
            _ = reader.fingerprint  # traces the preprocessors, which raises errors of lengths here
        open_rows = open_rows if pack else 0
        make = functools.partial(_Shard, readers, shares, converter=converter, open_rows=open_rows)
        self._make_shards = lambda: {n: make(shard=n) for n in range(first, after_last)}
        self._shards = self._make_shards()
        self._sizes = {name: _tokens_of(one.task, split=split) for name, one in readers.items()}
        self._start_counting()

    def __next__(self) -> Batch:
        """The next batch: [B, L] int32, and float32 for loss weights."""
        for shard in self._shards.values():
            shard.begin()  # all at once, so that their shuffle buffers fill in parallel
        parts = [shard.take(self._rows) for shard in self._shards.values()]
        more = any(parts)
        if not (self._any_process(more) if self._any_process else more):
            raise StopIteration
        self._tokens.append(self._tokens_now())
        self._batches += 1
        return self._batch([row for part in parts for row in _padded(part, self._rows)])

    def from_start(self) -> "Batches":
        """The same batches from the first one on, without tracing the preprocessors anew."""
        made = copy.copy(self)
        made._shards = made._make_shards()
        made._start_counting()
        return made

    def blank(self) -> Batch:
        """A batch of only padding, with the shapes and dtypes of all batches; reads no data."""
        return self._batch([[] for _ in range(self._rows * len(self._shards))])

    def counts(self) -> dict[str, int]:
        """The number of examples of each task that this process has read, over all epochs."""
        total: collections.Counter[str] = collections.Counter()
        for shard in self._shards.values():
            total.update({stream.task.name: stream.examples for stream in shard.streams})
        return dict(total)

    def sizes(self) -> dict[str, int]:
        """The number of tokens of each task's source, where it is known (`num_tokens`)."""
        return {task: size for task, size in self._sizes.items() if size}

    def tokens(self, *, batches: int) -> dict[str, int]:
        """The number of tokens of each task that this process has read, over all epochs.

        It counts `inputs` and `targets`, including examples that wait to be packed into a row.

        Args:
            batches: the number of batches used since the start or the last `restore`: all that
                were returned, or all but one.
        """
        return dict(self._tokens[batches - self._batches - 1])

    def _start_counting(self) -> None:
        # Counts after the newest two batches, since the training loop reads one batch ahead.
        self._tokens = collections.deque([self._tokens_now()], maxlen=2)
        self._batches = 0

    def _tokens_now(self) -> dict[str, int]:
        total: collections.Counter[str] = collections.Counter()
        for shard in self._shards.values():
            for stream in shard.streams:
                total[stream.task.name] += stream.tokens
        return dict(total)

    def state(self) -> dict[int, bytes]:
        """The serialized position of each of this process's shards, between two batches."""
        return {
            number: serialization.msgpack_serialize(
                {"settings": self._settings, "position": shard.state()}
            )
            for number, shard in self._shards.items()
        }

    def restore(self, state: Mapping[int, bytes]) -> None:
        """Continue from a position, saved with any number of processes.

        All settings but the batch size must be the same.

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


def source_rows(task: str, *, split: str, cleaned: bool = False) -> Iterator[dict[str, Any]]:
    """The source's rows of a task or mixture, in order, without its preprocessors.

    Args:
        cleaned: whether to apply the preprocessors of `preprocessing/cleaning.py`, as in training.

    Raises:
        ValueError: the task or split is unknown.
    """
    provider = find(task, split=split)
    for one in provider.tasks if isinstance(provider, seqio.Mixture) else [provider]:
        rows = one.source.get_dataset(split, shuffle=False)
        for step in one.preprocessors if cleaned else ():
            if step in (cleaning.clean, cleaning.clean_pairs):
                rows = step(rows)
        yield from rows.as_numpy_iterator()


class _Shard:
    """The rows of one shard: samples tasks, and converts and packs their examples."""

    def __init__(
        self,
        readers: Mapping[str, TaskReader],
        shares: Mapping[str, float],
        *,
        shard: int,
        converter: Converter,
        open_rows: int,
    ):
        reading = next(iter(readers.values())).reading
        self.streams = [TaskStream(reader, shard=shard) for reader in readers.values()]
        self._shares, self._seed = [shares[name] for name in readers], [reading.seed, shard]
        self._repeat, self._open_rows, self._converter = reading.repeat, open_rows, converter
        self._row_lengths = converter.row_lengths(reading.lengths)
        self._packer = packing.Packer(self._row_lengths, open_rows=open_rows)
        self._ready: list[Row] = []
        self._previous: dict[str, np.ndarray] = {}  # the last target of a row that continues
        self._examples = 0
        self._sampled: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int64))

    def begin(self) -> None:
        """Begin to read in the background, if not yet begun."""
        for stream in self.streams:
            stream.begin()

    def take(self, count: int) -> list[Row]:
        """The next `count` rows; fewer at the end of the only epoch."""
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
        """The position, a tree of numbers, bytes and arrays."""
        return {
            "streams": [stream.state() for stream in self.streams],
            "drawn": self._examples,
            "ready": self._ready,
            "open": self._packer.rows,
            **self._previous,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a position that an equal shard saved."""
        for stream, position in zip(self.streams, state["streams"], strict=True):
            stream.restore(position)
        self._examples, self._ready = state["drawn"], state["ready"]
        self._packer = packing.Packer(
            self._row_lengths, open_rows=self._open_rows, rows=state["open"]
        )
        self._previous = {name: state[name] for name in ("previous",) if name in state}

    def _continued(self, example: Example) -> Example:
        """The example with the token before it, where rows continue from batch to batch."""
        if not self._converter.continues:
            return example
        before, self._previous = self._previous, {"previous": example["targets"][-1:]}
        return {**example, **before}

    def _next_sampled(self) -> Example | None:
        """The next example of a sampled task, determined by the seed and the number of examples."""
        block, index = divmod(self._examples, _SAMPLED_AT_ONCE)
        if block != self._sampled[0]:
            generator = np.random.default_rng([*self._seed, block])
            tasks = generator.choice(len(self._shares), size=_SAMPLED_AT_ONCE, p=self._shares)
            self._sampled = block, tasks
        self._examples += 1
        return self.streams[self._sampled[1][index]].next()

    def _next_in_turn(self) -> Example | None:
        examples = (stream.next() for stream in self.streams)
        return next((example for example in examples if example is not None), None)


def _with_buffer_share(reading: Reading, share: float) -> Reading:
    least = min(_LEAST_BUFFER, reading.shuffle_buffer)
    buffer = max(least, round(share * reading.shuffle_buffer))
    return dataclasses.replace(reading, shuffle_buffer=buffer)


def _tokens_of(task: seqio.Task, *, split: str) -> int | None:
    count = getattr(task.source, "num_tokens", None)
    return None if count is None else count(split)


def _padded(rows: list[Row], count: int) -> list[Row]:
    return rows + [[] for _ in range(count - len(rows))]


def find(task: str, *, split: str) -> mixtures.Provider:
    """The registered task or mixture of a name; raises ValueError if it or the split is unknown."""
    tasks, mixes = seqio.TaskRegistry.names(), seqio.MixtureRegistry.names()
    if task not in tasks and task not in mixes:
        raise ValueError(f"data.task={task!r} is not registered.{hint(task, [*tasks, *mixes])}")
    provider = seqio.get_mixture_or_task(task)
    if split not in provider.splits:
        raise ValueError(
            f"split={split!r} of task {task!r} does not exist.{hint(split, provider.splits)}"
        )
    return provider


def _check_numbers(**numbers: int) -> None:
    for name, number in numbers.items():
        least = 0 if name == "seed" else 1
        if number < least:
            raise ValueError(f"data.{name}={number} must be {least} or more")


def _check_continued(
    converter: Converter,
    provider: mixtures.Provider,
    *,
    batch_size: int,
    shards: int,
    mixed: bool,
) -> None:
    """Check that rows can continue from batch to batch, where the converter requires it."""
    problem = ""
    if mixed:
        problem = "rows are neither packed nor shuffled: set data.pack=False"
    elif not isinstance(provider, seqio.Task):
        problem = f"data.task={provider.name!r} is a mixture, whose tasks would take turns in a row"
    elif shards != batch_size:
        problem = (
            f"each row is a shard, and data.batch_size={batch_size} cannot differ from "
            f"data.shards={shards}, which stays the same in all parts of a run"
        )
    if converter.continues and problem:
        raise ValueError(f"data.continue_rows=True: {problem}")


def _check_shards(shards: int, *, batch_size: int, first: int, after_last: int) -> None:
    if shards < 1 or batch_size % shards:
        fitting = [str(n) for n in range(1, batch_size + 1) if batch_size % n == 0]
        raise ValueError(
            f"data.shards={shards} does not divide data.batch_size={batch_size}: set one of "
            f"{', '.join(fitting)}"
        )
    if not 0 <= first < after_last <= shards:
        raise ValueError(
            f"shard_range=({first}, {after_last}) must contain at least one of the {shards} shards"
        )
