"""The memory that goes from batch to batch, of all tasks of a run: the `carry` of its state."""

from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like.config import Phase
from t5x_like.experiment.data_side import Inputs
from t5x_like.experiment.model_side import Experiment

# By task, {"": ...} in a run of one.
Models = Mapping[str, Experiment]
Data = Mapping[str, Inputs]


def abstract(models: Models, data: Data) -> Any:
    """The shapes and shardings of the `carry` of a train state."""
    return _by_task(
        {name: model.abstract_carry(data[name].batch_shapes()) for name, model in models.items()}
    )


def initial(models: Models, data: Data) -> Any:
    """The `carry` of a train state before the first batch."""
    memories: dict[str, Any] = dict.fromkeys(models)
    for name, model in models.items():
        if model.task.carry is not None:
            blank = model.put(data[name].train_batches.blank())
            memories[name] = model.initial_carry(blank)
    return _by_task(memories)


def check(memories: Sequence[Any], phases: Sequence[Phase]) -> None:
    """Check that a memory has the same shapes in all phases.

    Raises:
        ValueError: a phase changes them: there is no memory for its new rows.
    """
    for phase, memory in zip(phases, memories, strict=True):
        if memory != memories[0]:
            raise ValueError(
                f"phases.{phase.name}: the model has a memory that goes from batch to batch, and "
                f"its shapes would change after phase {phases[0].name!r}: give all phases the same "
                "data.batch_size and data.lengths"
            )


def _by_task(memories: Mapping[str, Any]) -> Any:
    """The `carry` of a train state, from the memories of all tasks; None for no memory."""
    if "" in memories:
        return memories[""]
    return {name: memory for name, memory in memories.items() if memory is not None} or None
