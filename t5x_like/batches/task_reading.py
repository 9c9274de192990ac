"""Settings for reading tasks with their checks, and the interface of a stream of examples."""

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from t5x_like.batches.conversion import Converter, Example


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


class Reader(Protocol):
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
