"""What a system declares for a task of a run: checked against the run's settings, and its loss."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
from jaxtyping import PyTree

from t5x_like import names
from t5x_like.experiment.run import Part, Run
from t5x_like.training import frozen


def check(run: Run, part: Part) -> None:
    """Check that a run has what the system's task for a part of it needs.

    Raises:
        ValueError: the system does not train such a head, or the run lacks a setting for it.
    """
    task = part.task
    if task.start_required and not run.settings.initialize:
        raise ValueError("initialize is not set: name the folder of the model to start from")
    _check_minibatches(run, part)
    objective = part.data.objective
    if task.objective and objective != task.objective:
        where = f"tasks.{part.name}." if part.name else ""
        head = part.model.get("head")
        network = f"the head {head!r}" if head else f"this {part.system}"
        raise ValueError(
            f"{where}data.objective={objective!r}: {network} reads the examples of "
            f"{task.objective!r} alone"
        )


def _check_minibatches(run: Run, part: Part) -> None:
    for name in ("minibatches", "inner_epochs"):
        number = getattr(run.settings.train, name)
        if number > 1 and (part.task.prepare is None or part.task.carry is not None):
            raise ValueError(
                f"train.{name}={number}: a step of this {part.system} has one update, "
                "since it prepares no batches (PPO does), or remembers them: set it to 1, and "
                "train.microbatches to accumulate gradients"
            )


def loss(
    part: Part, module: nn.Module, *, optimizer: Mapping[str, Any], axes: PyTree
) -> Callable[..., Any]:
    """The loss of a part, with its settings.

    Args:
        optimizer: its settings, which say what is frozen.
    """
    task = part.task
    own, shared = _keywords(task.loss), _keywords(task.prepare)
    settings = {
        name: value for name, value in part.loss.items() if name in own or name not in shared
    }
    # A loss gets the module, parameters, batch and key, and perhaps a memory: no settings.
    given = (*list(inspect.signature(task.loss).parameters)[:4], "carry")
    names.check_settings("loss", task.loss, settings, given=given)
    made: Callable[..., Any] = functools.partial(task.loss, module, **settings)
    trained = frozen.mask_of(optimizer, axes)
    return made if trained is None else frozen.without_gradient(made, trained=trained)


def prepare(part: Part, module: nn.Module) -> Callable[..., Any] | None:
    """The `Task.prepare` of a part, with its settings; None if it has none."""
    task = part.task
    if task.prepare is None:
        return None
    own = _keywords(task.prepare)
    settings = {name: value for name, value in part.loss.items() if name in own}
    given = list(inspect.signature(task.prepare).parameters)[:4]
    names.check_settings("loss", task.prepare, settings, given=given)
    return functools.partial(task.prepare, module, **settings)


def _keywords(function: Callable[..., Any] | None) -> set[str]:
    """The names of the arguments that can be given by keyword alone."""
    if function is None:
        return set()
    found = inspect.signature(function).parameters.values()
    return {one.name for one in found if one.kind is one.KEYWORD_ONLY}
