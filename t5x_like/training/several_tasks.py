"""Runs of several tasks: the step determines the task of a batch, and changes only its head."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import serialization
from jaxtyping import Int

from t5x_like.names import choose
from t5x_like.training import frozen

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


def shuffled_task_at(step: int, *, batches: Mapping[str, int], seed: int) -> str:
    """Choose the task at `step`, with a fixed number of batches of each task in each epoch.

    The batches of all tasks are shuffled together, anew in each epoch (Liu et al. 2019, MT-DNN,
    algorithm 1).

    Args:
        batches: {task: number of batches in an epoch}.
    """
    epoch, position = divmod(step, sum(batches.values()))
    return list(batches)[_order(epoch, tuple(batches.values()), seed)[position]]


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
        return {
            shard: serialization.msgpack_serialize(positions) for shard, positions in shards.items()
        }

    def restore(self, state: Mapping[int, bytes]) -> None:
        """Continue from the positions that `state` returned.

        Raises:
            ValueError: `state` lacks the position of a task.
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


HEAD = "head"  # the name of a network's head in its parameters
SHARED = ""  # the owner of the parameters that all tasks train


def owners(axes: Any, *, tasks: Iterable[str]) -> Any:
    """Return the task of each parameter: a tree like `axes` of task names, or SHARED.

    Args:
        axes: the logical axes of the parameters, see `optimizers.build`. The parameters of the head
            of task x are under HEAD/x.
    """
    folders = {task: f"{HEAD}/{task}/" for task in tasks}

    def owner(keys: Any, _: Any) -> str:
        path = jax.tree_util.keystr(keys, simple=True, separator="/")
        return next((t for t, folder in folders.items() if f"{path}/".startswith(folder)), SHARED)

    return jax.tree.map_with_path(owner, axes)


class TaskStates(NamedTuple):
    """The optimizer state of the shared parameters, and {task: state of its head}."""

    shared: Any
    heads: dict[str, Any]


def by_task(
    make: Callable[[Any], optax.GradientTransformation], axes: Any, *, owners: Any
) -> optax.GradientTransformationExtraArgs:
    """Make an optimizer that updates each head only in the steps of its task.

    Adam's bias correction and Adafactor's decay depend on the number of updates of a parameter,
    which for a head is the number of steps of its task. The `update` function needs `task=`.

    Args:
        make: a function from axes to the optimizer of the parameters with these axes.
        owners: the task of each parameter, see `owners`.
    """
    names = {SHARED} | set(jax.tree.leaves(owners))
    masks = {name: jax.tree.map(lambda owner, name=name: owner == name, owners) for name in names}
    parts = {
        name: frozen.leave_out(make(frozen.select(axes, trained=mask)), trained=mask)
        for name, mask in masks.items()
    }

    def init(params: Any) -> TaskStates:
        states = {name: part.init(params) for name, part in parts.items()}
        return TaskStates(states.pop(SHARED), states)

    def update(
        gradients: Any, state: TaskStates, params: Any = None, *, task: str, **_: Any
    ) -> tuple[Any, TaskStates]:
        updates, shared = parts[SHARED].update(gradients, state.shared, params)
        if task not in state.heads:  # its head, if any, is frozen
            return updates, TaskStates(shared, state.heads)
        head_updates, head = parts[task].update(gradients, state.heads[task], params)
        updates = jax.tree.map(
            lambda mine, x, y: x if mine else y, masks[task], head_updates, updates
        )
        return updates, TaskStates(shared, state.heads | {task: head})

    return optax.GradientTransformationExtraArgs(init, update)


def keep_absent_heads(*, owners: Any) -> optax.GradientTransformationExtraArgs:
    """Set the updates of the heads of other tasks, including weight decay, to zero."""

    def update(
        updates: Any, state: Any, params: Any = None, *, task: str, **_: Any
    ) -> tuple[Any, Any]:
        def keep(owner: str, update: Any) -> Any:
            # Adding -0.0 keeps every number bit for bit; adding 0.0 would turn -0.0 into 0.0.
            return update if owner in (SHARED, task) else jnp.full_like(update, -0.0)

        return jax.tree.map(keep, owners, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
