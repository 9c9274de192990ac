"""The batches of a run of several tasks; the step determines the task of a batch."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from flax import serialization
from jaxtyping import Int

from t5x_like.names import choose

# Distinguishes the random numbers that choose tasks from other uses of the same seed.
_STREAM = 0x7A5C


class Positioned(Protocol):
    """An iterator over this process's part of the batches, whose position can be saved."""

    def __next__(self) -> Any:
        """Return the next batch."""

    def state(self) -> Mapping[int, bytes] | None:
        """Return the position of each shard of the data; None if it cannot be saved."""

    def restore(self, state: Mapping[int, bytes]) -> None:
        """Continue from a position."""


def task_at(step: int, *, shares: Mapping[str, float], seed: int) -> str:
    """Choose at random the task of the batch that is trained on at `step`.

    Each task has the probability share / (sum of the shares). The result depends only on the
    arguments, so that a resumed run continues as if it had not been interrupted.
    """
    sequence = np.random.SeedSequence([seed, _STREAM, step])
    uniform = sequence.generate_state(1)[0] / 2**32
    bounds = np.cumsum(list(shares.values()))
    return list(shares)[int(np.searchsorted(bounds, uniform * bounds[-1], side="right"))]


def task_of_epoch(step: int, *, batches: Mapping[str, int], seed: int) -> str:
    """Choose the task at `step`, with a fixed number of batches of each task in each epoch.

    The batches of all tasks are shuffled together, anew in each epoch (Liu et al. 2019, MT-DNN,
    algorithm 1).

    Args:
        batches: {task: number of batches in an epoch}.
    """
    epoch, place = divmod(step, sum(batches.values()))
    return list(batches)[_order(epoch, tuple(batches.values()), seed)[place]]


@functools.lru_cache(maxsize=2)
def _order(epoch: int, batches: tuple[int, ...], seed: int) -> Int[np.ndarray, " N"]:
    """Return the index of the task of each batch in an epoch."""
    tasks = np.repeat(np.arange(len(batches)), batches)
    return np.random.default_rng([seed, _STREAM, epoch]).permutation(tasks)


class TaskBatches(Iterator[tuple[str, Any]]):
    """This process's part of the batches of a run, as (task, batch).

    Args:
        batches: {task: batches}; {"": batches} for a run of one task, whose positions are saved
            unchanged.
        choose: a function from the step to the task of its batch.
        step: the step of the state that the first batch is for.
    """

    def __init__(
        self,
        batches: Mapping[str, Positioned],
        *,
        choose: Callable[[int], str],
        step: int,
    ):
        self._batches, self._choose, self._step = batches, choose, step
        self._counts = dict.fromkeys(batches, 0)
        self._newest = ""

    def __next__(self) -> tuple[str, Any]:
        """Return the task and the batch of the next step."""
        task = self._choose(self._step)
        batch = next(self._batches[task])
        self._step += 1
        self._counts[task] += 1
        self._newest = task
        return task, batch

    def skip(self, number: int) -> None:
        """Read and drop the batches of the next steps; the batches after them are used instead."""
        for step in range(self._step, self._step + number):
            self._newest = self._choose(step)
            next(self._batches[self._newest])
            self._counts[self._newest] += 1

    def counts(self, *, step: int) -> dict[str, int]:
        """Return the number of batches of each task up to a step, without a batch read ahead."""
        ahead = self._step - step
        return {
            task: count - (ahead if task == self._newest else 0)
            for task, count in self._counts.items()
        }

    def state(self) -> Mapping[int, bytes] | None:
        """Return {shard: data positions of all tasks}; None if a position cannot be saved."""
        states = {task: batches.state() for task, batches in self._batches.items()}
        if "" in states:
            return states[""]
        shards: dict[int, dict[str, bytes]] = {}
        for task, state in states.items():
            if state is None:
                return None
            for shard, position in state.items():
                shards.setdefault(shard, {})[task] = position
        return {shard: serialization.msgpack_serialize(own) for shard, own in shards.items()}

    def restore(self, state: Mapping[int, bytes]) -> None:
        """Continue from the positions that `state` returned.

        Raises:
            ValueError: there is no position for one of the tasks.
        """
        if "" in self._batches:
            self._batches[""].restore(state)
            return
        for task, batches in self._batches.items():
            batches.restore(_PositionsOf(task, state))


class _PositionsOf(Mapping[int, bytes]):
    """The mapping {shard: position of one task}; a position is decoded when it is looked up."""

    def __init__(self, task: str, state: Mapping[int, bytes]):
        self._task, self._state = task, state

    def __getitem__(self, shard: int) -> bytes:
        positions = serialization.msgpack_restore(self._state[shard])
        return choose("task with a saved position", self._task, positions)

    def __iter__(self) -> Iterator[int]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def __contains__(self, shard: object) -> bool:
        return shard in self._state  # without reading it
