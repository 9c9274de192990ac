"""Batches of a task or mixture, for one process of several: deterministic, and resumable anywhere.

The data is cut into virtual shards, whose number does not depend on that of the processes. Each
gives its rows to each global batch, so any number of processes sees the same batches, and a
position can be restored onto another number of them. What a batch holds follows from the seed.

A shard is a mixture of streams, one for each task. Mixing, packing and laying out of rows is done
in NumPy, between two steps; reading and preprocessing is tf.data's, in the background.
"""

import collections
import dataclasses
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

# Draws of a mixture's tasks made at once.
_DRAWS = 1024
# A task with a small share in a mixture still shuffles among these, over all shards.
_LEAST_BUFFER = 1000


class Batches(Iterator[Batch]):
    """This process's part of each global batch of a task or mixture.

    Its part are the rows of the shards in `shard_range`, `batch_size / shards` of each, in order.
    A pass that is not repeated ends when all shards are used up, and pads what is missing with
    rows of zeros, which have no loss. It goes through the tasks of a mixture one after the other,
    whatever their rates.

    Args:
        task: name of a registered seqio Task or Mixture.
        split: of the task.
        batch_size: rows of a global batch.
        lengths: the most tokens of each feature.
        converter: name of a feature converter, or one.
        pack: put several short examples into a row.
        seed: of the order, the noise and the mixture; 0 or more.
        shuffle: False keeps the order of the source within a shard.
        repeat: go on for ever, in epochs of another order and other noise; False for one pass.
        shuffle_buffer: examples among which to shuffle, over all shards together.
        shards: pieces that the data is cut into: a multiple of every number of processes on which
            the run may go on, and not more than there are documents.
        shard_range: the first shard of this process, and the one after its last; None for all.
        any_process: tells whether any process calls it with True, when all of them call it. With
            it a pass that is not repeated ends on all processes at once; None if there is but one.
        phase: of the run that it is for; a position is restored in the phase it was saved in.

    Raises:
        ValueError: an unknown task, split or converter, features that do not suit the converter,
            a missing length, numbers that do not divide; while iterating, a shard without examples.
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
        provider = _find(task, split=split)
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
            _ = reader.fingerprint  # traces the preprocessors: lengths that do not fit show here
        self._shards = {
            shard: _Shard(readers, shares, shard=shard, converter=converter, pack=pack)
            for shard in range(first, after_last)
        }
        self._sizes = {name: _tokens_of(one.task, split=split) for name, one in readers.items()}
        self._start_counting()

    def __next__(self) -> Batch:
        """The next batch: [B, L] int32, and float32 for loss weights."""
        for shard in self._shards.values():
            shard.begin()  # all of them, so that none waits for the shuffle buffer of another
        parts = [shard.take(self._rows) for shard in self._shards.values()]
        more = any(parts)
        if not (self._any_process(more) if self._any_process else more):
            raise StopIteration
        self._tokens.append(self._tokens_now())
        self._drawn += 1
        return self._batch([row for part in parts for row in _padded(part, self._rows)])

    def blank(self) -> Batch:
        """A batch of padding alone, with the shapes and types of every batch; reads nothing."""
        return self._batch([[] for _ in range(self._rows * len(self._shards))])

    def counts(self) -> dict[str, int]:
        """How many examples of each task have been drawn for this process, over all epochs."""
        total: collections.Counter[str] = collections.Counter()
        for shard in self._shards.values():
            total.update({stream.task.name: stream.drawn for stream in shard.streams})
        return dict(total)

    def sizes(self) -> dict[str, int]:
        """The tokens of each task's source, of those that know it (`num_tokens`)."""
        return {task: size for task, size in self._sizes.items() if size}

    def tokens(self, *, batches: int) -> dict[str, int]:
        """How many tokens of each task were read for this process, over all epochs.

        Those of `inputs` and `targets`; what waits for a row to be packed into counts as read.

        Args:
            batches: drawn since the start or the last `restore`: all of them, or all but one.
        """
        return dict(self._tokens[batches - self._drawn - 1])

    def _start_counting(self) -> None:
        # After the newest batch and the one before: a loop draws one ahead.
        self._tokens = collections.deque([self._tokens_now()], maxlen=2)
        self._drawn = 0

    def _tokens_now(self) -> dict[str, int]:
        total: collections.Counter[str] = collections.Counter()
        for shard in self._shards.values():
            for stream in shard.streams:
                total[stream.task.name] += stream.tokens
        return dict(total)

    def state(self) -> dict[int, bytes]:
        """The position of each of this process's shards, as it is between two batches."""
        return {
            number: serialization.msgpack_serialize(
                {"settings": self._settings, "position": shard.state()}
            )
            for number, shard in self._shards.items()
        }

    def restore(self, state: Mapping[int, bytes]) -> None:
        """Goes on from a position, from however many processes it was gathered.

        Settings must be the same, but for the batch size.

        Raises:
            ValueError: a shard is missing, a setting has changed, or the task itself has.
        """
        for number, shard in self._shards.items():
            if number not in state:
                raise ValueError(
                    f"the data position has no shard {number}, only {sorted(state)}: was "
                    f"data.shards another number than {self._settings['shards']}?"
                )
            saved = serialization.msgpack_restore(state[number])
            for name, now in self._settings.items():
                before = saved["settings"].get(name, "")  # there was not always a phase
                if before != now:
                    raise ValueError(
                        f"the data position was saved with {name}={before!r}, it cannot be "
                        f"restored with {name}={now!r}"
                    )
            shard.restore(saved["position"])
        self._start_counting()

    def _batch(self, rows: list[Row]) -> Batch:
        return packing.to_batch(
            rows, converter=self._converter, lengths=self._lengths, pack=self._pack
        )


def source_rows(task: str, *, split: str, cleaned: bool = False) -> Iterator[dict[str, Any]]:
    """The rows of a task or mixture before their preprocessors, in the order of their source.

    Args:
        cleaned: after those of `preprocessing/cleaning.py`, as a model of the task has read them.

    Raises:
        ValueError: an unknown task or split.
    """
    provider = _find(task, split=split)
    for one in provider.tasks if isinstance(provider, seqio.Mixture) else [provider]:
        rows = one.source.get_dataset(split, shuffle=False)
        for step in one.preprocessors if cleaned else ():
            if step in (cleaning.clean, cleaning.clean_pairs):
                rows = step(rows)
        yield from rows.as_numpy_iterator()


class _Shard:
    """The rows of one shard: draws examples from its tasks, converts and packs them."""

    def __init__(
        self,
        readers: Mapping[str, TaskReader],
        shares: Mapping[str, float],
        *,
        shard: int,
        converter: Converter,
        pack: bool,
    ):
        reading = next(iter(readers.values())).reading
        self.streams = [TaskStream(reader, shard=shard) for reader in readers.values()]
        self._shares, self._seed = [shares[name] for name in readers], [reading.seed, shard]
        self._repeat, self._pack, self._converter = reading.repeat, pack, converter
        self._row_lengths = converter.row_lengths(reading.lengths)
        self._packer = packing.Packer(self._row_lengths)
        self._ready: list[Row] = []
        self._previous: dict[str, np.ndarray] = {}  # the last target of a row that continues
        self._drawn = 0
        self._draws: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int64))

    def begin(self) -> None:
        """Begins to read in the background, if it has not yet."""
        for stream in self.streams:
            stream.begin()

    def take(self, count: int) -> list[Row]:
        """The next `count` rows, fewer at the end of a pass that is not repeated."""
        while len(self._ready) < count:
            example = self._draw() if self._repeat else self._next_in_turn()
            if example is None:
                self._ready += self._packer.close()
                break
            sequences = self._converter.sequences(self._continued(example))
            self._ready += self._packer.add(sequences) if self._pack else [[sequences]]
        taken, self._ready = self._ready[:count], self._ready[count:]
        return taken

    def state(self) -> dict[str, Any]:
        """The position, of numbers, bytes and arrays."""
        return {
            "streams": [stream.state() for stream in self.streams],
            "drawn": self._drawn,
            "ready": self._ready,
            "open": self._packer.rows,
            **self._previous,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a position of an equal shard."""
        for stream, position in zip(self.streams, state["streams"], strict=True):
            stream.restore(position)
        self._drawn, self._ready = state["drawn"], state["ready"]
        self._packer = packing.Packer(self._row_lengths, rows=state["open"])
        self._previous = {name: state[name] for name in ("previous",) if name in state}

    def _continued(self, example: Example) -> Example:
        """The example with the token before it, where rows continue from batch to batch."""
        if not self._converter.continues:
            return example
        before, self._previous = self._previous, {"previous": example["targets"][-1:]}
        return {**example, **before}

    def _draw(self) -> Example | None:
        """The next example of a random task; which one follows from the number of the draw."""
        block, index = divmod(self._drawn, _DRAWS)
        if block != self._draws[0]:
            generator = np.random.default_rng([*self._seed, block])
            self._draws = block, generator.choice(len(self._shares), size=_DRAWS, p=self._shares)
        self._drawn += 1
        return self.streams[self._draws[1][index]].next()

    def _next_in_turn(self) -> Example | None:
        examples = (stream.next() for stream in self.streams)
        return next((example for example in examples if example is not None), None)


def _with_buffer_share(reading: Reading, share: float) -> Reading:
    least = min(_LEAST_BUFFER, reading.shuffle_buffer)
    buffer = max(least, round(share * reading.shuffle_buffer))
    return dataclasses.replace(reading, shuffle_buffer=buffer)


def _tokens_of(task: seqio.Task, *, split: str) -> int | None:
    tell = getattr(task.source, "num_tokens", None)
    return None if tell is None else tell(split)


def _padded(rows: list[Row], count: int) -> list[Row]:
    return rows + [[] for _ in range(count - len(rows))]


def _find(task: str, *, split: str) -> mixtures.Provider:
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
    """Check that the rows of a converter that continues them can continue."""
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
            f"data.shards={shards} does not divide data.batch_size={batch_size}: take one of "
            f"{', '.join(fitting)}"
        )
    if not 0 <= first < after_last <= shards:
        raise ValueError(
            f"shard_range=({first}, {after_last}) must be of one shard or more within the {shards}"
        )
