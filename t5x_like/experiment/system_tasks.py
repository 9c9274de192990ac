"""What a system declares for a task of a run: checked against the run's settings, and its loss."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import ml_collections
from jaxtyping import PyTree

from t5x_like import names, systems
from t5x_like.experiment.tasks import RunTask
from t5x_like.systems.system import Task
from t5x_like.training import frozen


def find(one: RunTask) -> Task:
    """The system's task for a task of a run.

    Raises:
        ValueError: the system does not train such a head, or the run lacks a setting for it.
    """
    task = systems.find(one.settings.system).task(one.settings.model.to_dict())
    if task.start_required and not one.settings.initialize:
        raise ValueError("initialize is not set: name the folder of the model to start from")
    _check_minibatches(one, task)
    objective = one.settings.data.objective
    if task.objective and objective != task.objective:
        where = f"tasks.{one.name}." if one.name else ""
        head = one.settings.model.get("head")
        network = f"the head {head!r}" if head else f"this {one.settings.system}"
        raise ValueError(
            f"{where}data.objective={objective!r}: {network} reads the examples of "
            f"{task.objective!r} alone"
        )
    return task


def _check_minibatches(one: RunTask, task: Task) -> None:
    for name in ("minibatches", "inner_epochs"):
        number = one.settings.train[name]
        if number > 1 and (task.prepare is None or task.carry is not None):
            raise ValueError(
                f"train.{name}={number}: a step of this {one.settings.system} has one update, "
                "since it prepares no batches (PPO does), or remembers them: set it to 1, and "
                "train.microbatches to accumulate gradients"
            )


def loss(
    config: ml_collections.ConfigDict, task: Task, module: nn.Module, axes: PyTree
) -> Callable[..., Any]:
    """The loss of a task, with its settings."""
    own, shared = _keywords(task.loss), _keywords(task.prepare)
    settings = {
        name: value
        for name, value in config.loss.to_dict().items()
        if name in own or name not in shared
    }
    # A loss gets the module, parameters, batch and key, and perhaps a memory: no settings.
    given = (*list(inspect.signature(task.loss).parameters)[:4], "carry")
    names.check_settings("loss", task.loss, settings, given=given)
    made: Callable[..., Any] = functools.partial(task.loss, module, **settings)
    trained = frozen.mask_of(config.optimizer, axes)
    return made if trained is None else frozen.without_gradient(made, trained=trained)


def prepare(
    config: ml_collections.ConfigDict, task: Task, module: nn.Module
) -> Callable[..., Any] | None:
    """The `Task.prepare` of a task, with its settings; None if it has none."""
    if task.prepare is None:
        return None
    own = _keywords(task.prepare)
    settings = {name: value for name, value in config.loss.items() if name in own}
    given = list(inspect.signature(task.prepare).parameters)[:4]
    names.check_settings("loss", task.prepare, settings, given=given)
    return functools.partial(task.prepare, module, **settings)


def _keywords(function: Callable[..., Any] | None) -> set[str]:
    """The names of the arguments that can be given by keyword alone."""
    if function is None:
        return set()
    found = inspect.signature(function).parameters.values()
    return {one.name for one in found if one.kind is one.KEYWORD_ONLY}
