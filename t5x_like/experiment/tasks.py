"""The tasks of a run: one, or those of the setting `tasks`, each with a config of its own."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ml_collections

from t5x_like.names import choose
from t5x_like.training.task_batches import task_at, task_of_epoch

AUTO = "auto"  # as many batches as one pass over the rows of a task has
# Settings that the tasks of a run share: the vocabulary of the parameters, the shards of positions.
_SHARED = {"data": ("vocabulary", "shards"), "evaluate": ("every",)}
# Settings that each task has for itself, {} by default.
_OWN = ("loss", "predict", "decode")
_HEAD = ("head", "labels", "dropout")  # the settings of `model` that a head may have for itself


@dataclasses.dataclass(frozen=True)
class RunTask:
    """A task of a run.

    Attributes:
        name: its key in `tasks`, "" for the only task of a run.
        settings: the config as if the task were the only one.
        share: its weight in the choice of the task of a step.
        batches: its batches in an epoch; AUTO, one pass over its rows, before they are counted;
            None where the tasks are drawn by share.
    """

    name: str
    settings: ml_collections.ConfigDict
    share: float
    batches: int | str | None = None

    @property
    def weight(self) -> float:
        """Its share of the steps, up to a factor that the tasks of a run have in common."""
        return float(self.batches) if isinstance(self.batches, int) else self.share

    def evaluated(self) -> dict[str, str]:
        """The data tasks that it is evaluated on, by the name that their numbers begin with."""
        tasks = tuple(self.settings.evaluate.tasks) or (self.settings.data.task,)
        return {f"{self.name}/{task}" if self.name else task: task for task in tasks}


def run_tasks(config: ml_collections.ConfigDict) -> list[RunTask]:
    """The tasks of a config, or of one of its phases (`config.Phase.settings`), by name.

    Each of several tasks gets the config with its own `model.head` and `model.labels`, its own
    `loss`, `predict` and `decode`, and its changes of `data` and `evaluate`, which come after those
    of a phase.

    Raises:
        ValueError: a key that a task does not have, with the nearest that it has, or a bad value.
    """
    if not config.tasks:
        if config.model.get("head") == "":
            raise ValueError("tasks is empty, and model.head is not set: set one of them")
        return [RunTask("", config, 1.0)]
    with_head = heads(config)
    if with_head and (missing := [name for name in config.tasks if name not in with_head]):
        raise ValueError(
            f"tasks.{missing[0]}.model.head is not set: set the head of each task, or of none of "
            "them if the system has no heads"
        )
    found = [_task(config, name) for name in config.tasks]
    without = [task.name for task in found if task.batches is None]
    if without and len(without) < len(found):
        raise ValueError(
            f"tasks.{without[0]}.batches is not set, and other tasks have it: set it for all of "
            "them, or for none to draw the tasks by their share"
        )
    return found


def choose_by_step(tasks: Sequence[RunTask], *, seed: int) -> Callable[[int], str]:
    """The function from a step to the task of its batch: by the share, or by epochs of batches."""
    batches = {task.name: task.batches for task in tasks if isinstance(task.batches, int)}
    if batches:
        return functools.partial(task_of_epoch, batches=batches, seed=seed)
    shares = {task.name: task.share for task in tasks}
    return functools.partial(task_at, shares=shares, seed=seed)


def choose_task(config: ml_collections.ConfigDict, *, name: str | None) -> RunTask:
    """The task that the flag --task of a command names; without it the only task of a run.

    Raises:
        ValueError: as `run_tasks`; or the run has no such task, or several and none is named.
    """
    tasks = {task.name: task for task in run_tasks(config)}
    if not config.tasks:
        if name:
            raise ValueError(f"--task={name!r}: this run has only one task: omit --task")
        return tasks[""]
    if not name:
        raise ValueError(
            f"--task is not set, and this run has several tasks: choose one of {', '.join(tasks)}"
        )
    return choose("--task", name, tasks)


def heads(config: ml_collections.ConfigDict) -> dict[str, dict[str, Any]]:
    """The `model.head` of a network with the heads of all tasks; {} if no task sets a head."""
    models = {name: task.get("model", {}) for name, task in config.tasks.items()}
    return {
        name: {
            "head": model.head,
            "labels": model.get("labels", config.model.get("labels", 0)),
            **({"dropout": model.dropout} if "dropout" in model else {}),
        }
        for name, model in models.items()
        if "head" in model
    }


def _task(config: ml_collections.ConfigDict, name: str) -> RunTask:
    where, own = f"tasks.{name}", config.tasks[name].to_dict()
    if not re.fullmatch(r"\w+", name):
        raise ValueError(f"tasks has the name {name!r}: use letters, digits and underscores")
    _check_keys(where, own, ("model", "share", "batches", *_SHARED, *_OWN))
    share, batches = own.get("share", 1.0), own.get("batches")
    if not isinstance(share, int | float) or share <= 0:
        raise ValueError(f"{where}.share={share!r} must be a number above 0")
    if batches not in (None, AUTO) and (type(batches) is not int or batches < 1):
        raise ValueError(f"{where}.batches={batches!r} must be 1 or more, or {AUTO!r} for one pass")
    if batches is not None and "share" in own:
        raise ValueError(f"{where} has both share and batches, of which it can have one")
    settings = config.copy_and_resolve_references()
    with settings.unlocked():
        settings.tasks = {}
        model = own.get("model", {})
        _check_keys(f"{where}.model", model, _HEAD)
        settings.model = settings.model.to_dict() | model
        for section in _OWN:
            settings[section] = own.get(section, {})
        for section in _SHARED:
            _change(settings[section], own.get(section, {}), section=section, where=where)
    _check_batch_size(settings, where=where)
    return RunTask(name, settings, float(share), batches)


def _change(
    settings: ml_collections.ConfigDict, changes: Mapping[str, Any], *, section: str, where: str
) -> None:
    """Replace the settings of a section that a task sets."""
    allowed = [key for key in settings if key not in _SHARED[section]]
    _check_keys(f"{where}.{section}", changes, allowed)
    for key, value in changes.items():
        try:
            settings[key] = value
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}.{section}: {error}") from error


def _check_keys(where: str, keys: Iterable[str], allowed: Iterable[str]) -> None:
    for key in keys:
        choose(where, key, dict.fromkeys(allowed))


def _check_batch_size(settings: ml_collections.ConfigDict, *, where: str) -> None:
    rows, train = settings.data.batch_size, settings.train
    if rows < 1 or rows % (train.minibatches * train.microbatches):
        own = "" if train.minibatches == 1 else f"train.minibatches={train.minibatches}*"
        raise ValueError(
            f"{where}: data.batch_size={rows} must be a positive multiple of "
            f"{own}train.microbatches={train.microbatches}"
        )
