"""A run: its settings split into phases and tasks, and the objects they name, opened once."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import ml_collections

from t5x_like import paths, systems
from t5x_like.config import parse
from t5x_like.config.run_settings import DataSettings, EvaluateSettings, RunSettings, changed
from t5x_like.experiment import data_setup
from t5x_like.experiment.data_setup import DataSetup
from t5x_like.names import choose
from t5x_like.pretrained.weight_source import Source, open_source
from t5x_like.systems.system import System, Task

AUTO = "auto"  # as many batches as one pass over the task's rows takes
# Settings that all tasks share: parameters belong to one vocabulary, data positions to one number
# of shards.
_SHARED = {"data": ("vocabulary", "shards"), "evaluate": ("every",)}
# Settings that each task sets separately, {} by default.
_OWN = ("loss", "predict", "decode")
_HEAD = ("head", "labels", "dropout")  # the settings of `model` that a task may change for its head


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """A task of a run, within a phase or outside of phases, with all its settings.

    Attributes:
        name: its key in `tasks`; "" for the only task of a run.
        system: the name of the system.
        model: the settings of the network with the head of this task.
        data, loss, evaluate, predict, decode: see `RunSettings`.
        share: its weight when a step's task is drawn.
        batches: its batches per epoch; AUTO (one pass over its rows) before the rows are counted;
            None if the tasks are drawn by share.
    """

    name: str = ""
    system: str
    model: Mapping[str, Any]
    data: DataSettings
    loss: Mapping[str, Any]
    evaluate: EvaluateSettings
    predict: Mapping[str, Any]
    decode: Mapping[str, Any]
    share: float = 1.0
    batches: int | str | None = None

    @functools.cached_property
    def task(self) -> Task:
        """Return the system's `Task` for the head.

        Raises:
            ValueError: the system is unknown, or it is not trained with this head.
        """
        return systems.find(self.system).task(self.model)

    @functools.cached_property
    def text(self) -> DataSetup:
        """Build the vocabulary, objective, converter and labels of the data.

        Raises:
            ValueError: see `data_setup.build`.
        """
        return data_setup.build(self.data, start=self._start())

    def _start(self) -> int | None:
        """Return the first decoder token that the network prescribes, or None.

        Pegasus starts with padding and mBART with a language code, whatever begin token their
        vocabulary has.
        """
        if not self.system:
            return None
        setting = systems.find(self.system).generation.get("decoder_start_token_id", "")
        return self.model.get(setting)

    @property
    def weight(self) -> float:
        """The task's share of the steps, not normalized over the tasks of a run."""
        return float(self.batches) if isinstance(self.batches, int) else self.share

    @property
    def evaluated(self) -> dict[str, str]:
        """{prefix of the metrics' names: data task to evaluate on}."""
        tasks = self.evaluate.tasks or (self.data.task,)
        return {f"{self.name}/{task}" if self.name else task: task for task in tasks}


@dataclasses.dataclass(frozen=True, eq=False)
class Phase:
    """A part of a run with its own data settings.

    Attributes:
        name: the key in `phases`, "" for the only phase of a run without phases.
        first, last: the number of steps taken when the phase begins, and when it ends.
        reading: the name of the phase at whose start the data was opened: this phase, or an earlier
            one if only the batch size changes, so that reading continues.
        data: the data settings, before each task's changes.
        parts: the tasks.
    """

    name: str
    first: int
    last: int
    reading: str
    data: DataSettings
    parts: tuple[Part, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A run, or the model and data that a config names for another command.

    Attributes:
        settings: the run's settings.
        parts: the tasks, with the data settings before any phase's changes.
        phases: in the order of `train.phases`; a run without phases has one named "". A phase that
            changes only `batch_size` continues reading where the phase before stopped. Any other
            phase opens its data anew, in another order, because its `data.seed` differs.

    Raises:
        ValueError: `train.phases` does not list `phases`, the steps do not add up to `train.steps`,
            a phase changes a setting that is not in `data` or cannot change, a task has a key that
            tasks do not have, or a batch size does not fit.
    """

    settings: RunSettings
    parts: tuple[Part, ...] = dataclasses.field(init=False)
    phases: tuple[Phase, ...] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", _parts(self.settings, self.settings.data))
        object.__setattr__(self, "phases", _phases(self.settings, self.parts))

    @functools.cached_property
    def system(self) -> System:
        """The system of the network.

        Raises:
            ValueError: the system is unknown.
        """
        return systems.find(self.settings.system)

    @functools.cached_property
    def source(self) -> Source | None:
        """The opened folder `initialize`; None if the run starts from random parameters.

        Raises:
            ValueError: see `open_source`.
        """
        folder = self.settings.initialize
        return open_source(paths.path(folder)) if folder else None

    def check_source(self) -> None:
        """Open the folder `initialize` now, if there is one, so that a mistake raises here."""
        self.source  # noqa: B018 - a property that opens

    def close_source(self) -> None:
        """Forget the open folder, whose arrays some formats keep; it can be opened again."""
        vars(self).pop("source", None)

    def phase_at(self, step: int) -> Phase:
        """Return the phase in which a run takes this step; after the end, the last phase."""
        return next((phase for phase in self.phases if step <= phase.last), self.phases[-1])

    @property
    def heads(self) -> dict[str, dict[str, Any]]:
        """The `model.head` of a network with the heads of all tasks; {} if no task sets a head."""
        return _heads(self.settings)

    @property
    def network(self) -> dict[str, Any]:
        """The settings of the network with the heads of all tasks."""
        return {**self.settings.model, **({"head": self.heads} if self.heads else {})}

    def replace(self, **sections: Any) -> "Run":
        """Return a run with some sections of the settings replaced."""
        run = Run(dataclasses.replace(self.settings, **sections))
        if "source" in vars(self) and run.settings.initialize == self.settings.initialize:
            vars(run)["source"] = self.source  # open a folder only once
        return run


def of_config(config: ml_collections.ConfigDict) -> Run:
    """Return the run that a config describes.

    Raises:
        ValueError: see `config.parse` and `Run`.
    """
    return Run(parse(config))


def choose_part(parts: Iterable[Part], *, name: str | None) -> Part:
    """Return the task named by a command's flag --task, or the only task of a run without it.

    Raises:
        ValueError: the run has no such task, or several and none is named.
    """
    tasks = {part.name: part for part in parts}
    if "" in tasks:
        if name:
            raise ValueError(f"--task={name!r}: this run has only one task: omit --task")
        return tasks[""]
    if not name:
        raise ValueError(
            f"--task is not set, and this run has several tasks: choose one of {', '.join(tasks)}"
        )
    return choose("--task", name, tasks)


def _heads(settings: RunSettings) -> dict[str, dict[str, Any]]:
    models = {name: task.get("model", {}) for name, task in settings.tasks.items()}
    return {
        name: {
            "head": model["head"],
            "labels": model.get("labels", settings.model.get("labels", 0)),
            **({"dropout": model["dropout"]} if "dropout" in model else {}),
        }
        for name, model in models.items()
        if "head" in model
    }


def _parts(settings: RunSettings, data: DataSettings) -> tuple[Part, ...]:
    """Return the tasks of a run, each with its changes applied on top of the phase's."""
    if not settings.tasks:
        if settings.model.get("head") == "":
            raise ValueError("tasks is empty, and model.head is not set: set one of them")
        shared = {name: getattr(settings, name) for name in ("system", "model", "evaluate", *_OWN)}
        return (Part(data=data, **shared),)
    heads = _heads(settings)
    if heads and (missing := [name for name in settings.tasks if name not in heads]):
        raise ValueError(
            f"tasks.{missing[0]}.model.head is not set: set the head of each task, or of none of "
            "them if the system has no heads"
        )
    parts = tuple(_part(settings, data, name) for name in settings.tasks)
    without = [part.name for part in parts if part.batches is None]
    if without and len(without) < len(parts):
        raise ValueError(
            f"tasks.{without[0]}.batches is not set, and other tasks have it: set it for all of "
            "them, or for none to draw the tasks by their share"
        )
    return parts


def _part(settings: RunSettings, data: DataSettings, name: str) -> Part:
    where, task = f"tasks.{name}", settings.tasks[name]
    if not re.fullmatch(r"\w+", name):
        raise ValueError(f"tasks has the name {name!r}: use letters, digits and underscores")
    _check_keys(where, task, ("model", "share", "batches", *_SHARED, *_OWN))
    share, batches = task.get("share", 1.0), task.get("batches")
    if not isinstance(share, int | float) or share <= 0:
        raise ValueError(f"{where}.share={share!r} must be a number above 0")
    if batches not in (None, AUTO) and (type(batches) is not int or batches < 1):
        raise ValueError(f"{where}.batches={batches!r} must be 1 or more, or {AUTO!r} for one pass")
    if batches is not None and "share" in task:
        raise ValueError(f"{where} has both share and batches: it can have only one")
    model = task.get("model", {})
    _check_keys(f"{where}.model", model, _HEAD)
    part = Part(
        name=name,
        system=settings.system,
        model={**settings.model, **model},
        data=_changed(data, task, section="data", where=where),
        evaluate=_changed(settings.evaluate, task, section="evaluate", where=where),
        share=float(share),
        batches=batches,
        **{section: task.get(section, {}) for section in _OWN},
    )
    rows, train = part.data.batch_size, settings.train
    if rows < 1 or rows % (train.minibatches * train.microbatches):
        minibatches = "" if train.minibatches == 1 else f"train.minibatches={train.minibatches}*"
        raise ValueError(
            f"{where}: data.batch_size={rows} must be a positive multiple of "
            f"{minibatches}train.microbatches={train.microbatches}"
        )
    return part


def _changed(settings: Any, task: Mapping[str, Any], *, section: str, where: str) -> Any:
    """Return a section of settings with the changes of a task."""
    changes = task.get(section, {})
    names = [field.name for field in dataclasses.fields(settings)]
    allowed = [name for name in names if name not in _SHARED[section]]
    _check_keys(f"{where}.{section}", changes, allowed)
    return changed(settings, changes, prefix=f"{where}.{section}.")


def _check_keys(where: str, keys: Iterable[str], allowed: Iterable[str]) -> None:
    for key in keys:
        choose(where, key, dict.fromkeys(allowed))


def _phases(settings: RunSettings, parts: tuple[Part, ...]) -> tuple[Phase, ...]:
    """Return the phases; `parts` are the tasks of the only phase of a run without phases."""
    # The order is a setting because a ConfigDict sorts its keys.
    names = settings.train.phases
    if sorted(names) != sorted(settings.phases):
        raise ValueError(
            f"train.phases={names!r} must have each name in phases once, in the order of the run: "
            f"{', '.join(settings.phases) or 'there are none'}"
        )
    phases: list[Phase] = []
    for name in names:
        changes = dict(settings.phases[name])
        steps = changes.pop("steps", 0)
        if not isinstance(steps, int) or steps < 1:
            raise ValueError(
                f"phases.{name}.steps={steps!r} must be 1 or more (the {len(names)} phases share "
                f"train.steps={settings.train.steps})"
            )
        before = phases[-1] if phases else None
        phases.append(_phase(settings, name, changes, before=before, steps=steps))
    if not phases:
        phases = [_of_data(settings, "", 0, settings.train.steps, "", settings.data, parts)]
    if phases[-1].last != settings.train.steps:
        sizes = " + ".join(f"{phase.last - phase.first} ({phase.name})" for phase in phases)
        raise ValueError(
            f"train.steps={settings.train.steps} must be the sum of the phases' steps: "
            f"{sizes} = {phases[-1].last}"
        )
    return tuple(phases)


def _phase(
    settings: RunSettings,
    name: str,
    changes: Mapping[str, Any],
    *,
    before: Phase | None,
    steps: int,
) -> Phase:
    # A phase may not change the vocabulary of the parameters, or the shards of data positions.
    known = [field.name for field in dataclasses.fields(settings.data)]
    _check_keys(f"phases.{name}", changes, [name for name in known if name not in _SHARED["data"]])

    def change(new: Mapping[str, Any]) -> DataSettings:
        new = {key: _merged(getattr(settings.data, key), value) for key, value in new.items()}
        return changed(settings.data, new, prefix=f"phases.{name}: data.")

    if before is None:
        return _of_data(settings, name, 0, steps, name, change(changes))
    last = before.last + steps
    same = change({"seed": before.data.seed, **changes})
    if dataclasses.replace(same, batch_size=before.data.batch_size) == before.data:
        return _of_data(settings, name, before.last, last, before.reading, same)
    seed = settings.data.seed + settings.train.phases.index(name)
    return _of_data(settings, name, before.last, last, name, change({"seed": seed, **changes}))


def _merged(before: Any, value: Any) -> Any:
    """Return the new value of a setting; a mapping only updates the entries that it has."""
    if not isinstance(before, Mapping) or not isinstance(value, Mapping):
        return value
    return {**before, **{key: _merged(before.get(key), entry) for key, entry in value.items()}}


def _of_data(
    settings: RunSettings,
    name: str,
    first: int,
    last: int,
    reading: str,
    data: DataSettings,
    parts: tuple[Part, ...] = (),
) -> Phase:
    """Return the phase with these data settings, after checking the batch size."""
    where = f"phases.{name}: " if name else ""
    if data.batch_size < 1:
        raise ValueError(f"{where}data.batch_size={data.batch_size} must be 1 or more")
    train = settings.train
    cuts = {"minibatches": train.minibatches, "microbatches": train.microbatches}
    if data.batch_size % math.prod(cuts.values()):
        written = "*".join(f"train.{name}={n}" for name, n in cuts.items() if n > 1)
        raise ValueError(f"{where}{written} does not divide data.batch_size={data.batch_size}")
    return Phase(name, first, last, reading, data, parts or _parts(settings, data))
