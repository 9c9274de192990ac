"""The memory passed from batch to batch, for all tasks: the `carry` of the train state."""

from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like.experiment.data_side import TaskData
from t5x_like.experiment.model_side import TaskProgram
from t5x_like.experiment.run import Phase

# By task, {"": ...} in a run with one task.
Models = Mapping[str, TaskProgram]
Data = Mapping[str, TaskData]


def abstract(models: Models, data: Data) -> Any:
    """Return the shapes and shardings of the `carry` of a train state."""
    return _by_task(
        {name: model.abstract_carry(data[name].batch_shapes()) for name, model in models.items()}
    )


def initial(models: Models, data: Data) -> Any:
    """Return the `carry` of a train state before the first batch."""
    memories: dict[str, Any] = dict.fromkeys(models)
    for name, model in models.items():
        if model.task.carry is not None:
            blank = model.put(data[name].train_batches.blank())
            memories[name] = model.initial_carry(blank)
    return _by_task(memories)


def check(memories: Sequence[Any], phases: Sequence[Phase]) -> None:
    """Check that a memory has the same shapes in all phases.

    Raises:
        ValueError: a phase changes them, so that its rows would have no memory.
    """
    for phase, memory in zip(phases, memories, strict=True):
        if memory != memories[0]:
            raise ValueError(
                f"phases.{phase.name}: the model has a memory that goes from batch to batch, and "
                f"its shapes would change after phase {phases[0].name!r}: give all phases the same "
                "data.batch_size and data.lengths"
            )


def check_data(models: Models, parts: Sequence[Data]) -> None:
    """Check that there is held-out data, and that rows continue for a task with a memory.

    Raises:
        ValueError: a check fails; see also `_check_shards`.
    """
    _check_shards(parts)
    for data in parts:
        for name, model in models.items():
            data[name].check_held_out()
            has_memory = model.task.carry is not None
            if has_memory and not data[name].part.data.continue_rows:
                raise ValueError(
                    f"data.continue_rows=False, and system={model.part.system!r} has a memory "
                    "that goes from batch to batch: row r of a batch must continue row r of the "
                    "batch before; set data.continue_rows=True"
                )


def _check_shards(parts: Sequence[Data]) -> None:
    """Check that the phases and tasks of a run read its data in the same number of shards.

    Raises:
        ValueError: the numbers differ, so that no saved data position would fit all phases and
            tasks.
    """
    numbers = {inputs.shards for data in parts for inputs in data.values()}
    if len(numbers) > 1:
        raise ValueError(
            "data.continue_rows=True: each row of a batch is a shard of the data, and all phases "
            f"and tasks of a run have the same data.shards, but these would have "
            f"{', '.join(map(str, sorted(numbers)))}: set the same data.batch_size wherever rows "
            "continue, and data.shards to it"
        )


def _by_task(memories: Mapping[str, Any]) -> Any:
    """Return the `carry` of a train state from the memories of all tasks, or None."""
    if "" in memories:
        return memories[""]
    return {name: memory for name, memory in memories.items() if memory is not None} or None
