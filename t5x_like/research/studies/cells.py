"""The cells of a study, each an arm with a seed: their runs, configs and folders."""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import ml_collections

from t5x_like import checkpoints, config, systems
from t5x_like.config.run_settings import RunSettings
from t5x_like.experiment import command_line, reporting
from t5x_like.experiment.run import Run
from t5x_like.names import hint, trust_code
from t5x_like.research.studies.definition import Changes, Study

_PLANNED = "planned.json"  # the plan; training overwrites config.json with the completed config


@dataclasses.dataclass(frozen=True, eq=False)
class CellRun:
    """A training run of one cell, or of several cells that share it.

    Attributes:
        name: its name in the study.
        settings: the run's settings, with its folder.
        after: the run that it starts from; None for random parameters.
        numbers: the numbers that its log must have at the last step.
    """

    name: str
    settings: RunSettings
    after: "CellRun | None"
    numbers: tuple[str, ...]

    @property
    def folder(self) -> pathlib.Path:
        """The folder of the run."""
        return pathlib.Path(self.settings.workdir)

    @property
    def text(self) -> str:
        """The config as JSON, without the workdir."""
        return json.dumps(config.to_dict(self.settings) | {"workdir": ""}, indent=2, sort_keys=True)

    def value(self, number: str) -> float | None:
        """Return a number at the last step; None if the run is unfinished or it is undefined."""
        if not self.is_finished():
            return None
        return reporting.read_log(self.folder).get(number, {}).get(self.settings.train.steps)

    def is_finished(self) -> bool:
        """Return whether its last checkpoint and all numbers of the last step exist."""
        return self._is_trained() and not self._unlogged()

    def missing(self) -> list[str]:
        """Return the numbers that a trained run lacks at its last step."""
        return self._unlogged() if self._is_trained() else []

    def _unlogged(self) -> list[str]:
        # Undefined numbers, such as correlations of equal values, are null but present.
        steps, lines = self.settings.train.steps, reporting.log_lines(self.folder)
        logged = {name for line in lines if line["step"] == steps for name in line}
        return [number for number in self.numbers if number not in logged]

    def _is_trained(self) -> bool:
        steps = checkpoints.checkpoint_steps(self.folder / "checkpoints")
        return self.settings.train.steps in steps


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
    """An arm with a seed.

    Attributes:
        arm, seed: the arm and the seed.
        runs: {name: run}, in order; a run shared with an earlier cell is the same object.
    """

    arm: str
    seed: int
    runs: Mapping[str, CellRun]


def cells(
    study: Study,
    folder: pathlib.Path,
    *,
    changes: Changes,
    seeds: Mapping[str, Sequence[int]] | None = None,
) -> list[Cell]:
    """Return the cells of a study, seed by seed, so that early seeds cover all arms.

    Args:
        study: the study.
        folder: the folder of the study; a run is in ARM/SEED/NAME.
        changes: settings of all runs, which override all others.
        seeds: the seeds of each arm; None for the study's seeds.

    Raises:
        ValueError: a config, a setting or a value is wrong; the message names arm and run.
    """
    known: dict[str, CellRun] = {}
    study_cells = []
    of = seeds or dict.fromkeys(study.arms, study.seeds)
    for seed in dict.fromkeys(seed for arm_seeds in of.values() for seed in arm_seeds):
        for arm in (name for name in study.arms if seed in of[name]):
            runs: dict[str, CellRun] = {}
            for name in study.runs:
                if name not in study.arms[arm].leaves_out:
                    try:
                        cell_run = _run(
                            study, arm, seed, name, runs, folder=folder, changes=changes
                        )
                    except ValueError as error:
                        raise ValueError(f"arms.{arm}, runs.{name}: {error}") from error
                    runs[name] = known.setdefault(cell_run.text, cell_run)
            study_cells.append(Cell(arm, seed, runs))
    return study_cells


def _run(
    study: Study,
    arm: str,
    seed: int,
    name: str,
    before: Mapping[str, CellRun],
    *,
    folder: pathlib.Path,
    changes: Changes,
) -> CellRun:
    run = study.runs[name]
    config_dict = command_line.load_file(run.config)
    after = before.get(study.start_of(arm, name))
    source = after or _source(study, arm, name, folder=folder, changes=changes)
    if source is not None:
        _start_from(config_dict, source.settings)
    config_dict.initialize = str(after.folder) if after else ""
    run_changes = dict(run.changes)
    if name in study.arms[arm].starts_from:  # overrides the run's `initialize`
        run_changes["initialize"] = config_dict.initialize
    run_changes.update({**study.arms[arm].changes.get(name, {}), **changes})
    for key, value in {**run_changes, "train.seed": seed, "data.seed": seed}.items():
        _set(config_dict, key, value)
    config_dict.workdir = str(folder / arm / str(seed) / name)
    settings = config.parse(config_dict)
    Run(settings)  # checks phases and tasks
    trust_code(config.to_dict(settings))  # for the training process, which reads the folder
    if settings.train.patience:
        raise ValueError("train.patience must be 0: the runs of a study have the same length")
    measured = [measure.number for measure in study.measures.values() if measure.run == name]
    return CellRun(name, settings, after, tuple(measured))


def _source(
    study: Study, arm: str, name: str, *, folder: pathlib.Path, changes: Changes
) -> CellRun | None:
    """Return the run that this arm leaves out, for its network and vocabulary."""
    start = study.start_of(arm, name)
    if not start:
        return None
    without = dataclasses.replace(study.arms[arm], leaves_out=())
    complete = dataclasses.replace(study, arms={**study.arms, arm: without})
    return _run(complete, arm, 0, start, {}, folder=folder, changes=changes)


def _start_from(config_dict: ml_collections.ConfigDict, source: RunSettings) -> None:
    """Copy system, network and vocabulary from an earlier run.

    If the config leaves its system open, its own network settings override the run's.
    """
    model_settings = () if config_dict.system else config_dict.model.items()
    changes = {name: value for name, value in model_settings if value is not None}
    config_dict.system = source.system
    config_dict.model = {**source.model, **changes}
    config_dict.data.vocabulary = source.data.vocabulary


def _set(settings: ml_collections.ConfigDict, key: str, value: Any) -> None:
    """Set `key`, such as train.steps; sections that take any setting may get new keys."""
    *parents, last = key.split(".")
    node: Any = settings
    for name in parents:
        if not isinstance(node, ml_collections.ConfigDict) or name not in node:
            raise ValueError(f"{key} does not exist.{hint(key, config.SETTINGS)}")
        node = node[name]
    # Numbers are checked now: other settings may be computed from them.
    words = {int: "a whole number", float: "a number"}
    kind = node.get_type(last) if last in node else None
    if kind in words and type(value) not in (int, kind, type(None)):
        raise ValueError(f"{key}={value!r} must be {words[kind]}")
    try:
        with settings.ignore_type():
            node[last] = ml_collections.ConfigDict(value) if isinstance(value, dict) else value
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{key}={value!r}: {error}") from error


def runs_of(cells: Sequence[Cell]) -> list[CellRun]:
    """Return the distinct runs of some cells, each behind the run that it starts from."""
    return list(dict.fromkeys(run for cell in cells for run in cell.runs.values()))


def write(runs: Sequence[CellRun], *, again: Collection[str]) -> None:
    """Write the config.json of each run, which configs/run.py reads.

    Args:
        runs: the runs.
        again: the arms whose runs are removed if they have other settings, and trained anew.

    Raises:
        ValueError: see `check_unchanged`.
    """
    check_unchanged(runs, again=again)
    for run in reversed([run for run in runs if _has_changed(run)]):
        shutil.rmtree(run.folder)
    for run in runs:
        if not (run.folder / _PLANNED).is_file():
            command_line.write_json(run.folder / "config.json", config.to_dict(run.settings))
            with command_line.writing(run.folder / _PLANNED):
                (run.folder / _PLANNED).write_text(run.text + "\n")


def check_unchanged(runs: Sequence[CellRun], *, again: Collection[str]) -> None:
    """Check that no folder has a run of other settings, whose numbers would be taken for these.

    Args:
        runs: the runs.
        again: the arms whose runs may have other settings.

    Raises:
        ValueError: a folder has a run with other settings.
    """
    arm_of = {run: run.folder.parent.parent.name for run in runs}
    changed = [run for run in runs if arm_of[run] not in again and _has_changed(run)]
    if changed:
        arms = list(dict.fromkeys(arm_of[run] for run in changed))
        raise ValueError(
            f"{changed[0].folder} has a run of other settings (of {len(changed)} in all): "
            f"--rerun={','.join(arms)} removes these and trains them anew; or choose another "
            "--output"
        )


def _has_changed(run: CellRun) -> bool:
    """Return whether the folder holds a run with other settings, or starts from such a run."""
    planned = run.folder / _PLANNED
    if not planned.is_file():
        return False
    # Reading it as a config gives settings newer than the run their defaults.
    before = config.to_dict(config.parse(config.load(planned)))
    if before["system"]:
        before["model"] = systems.complete(before["system"], before["model"])
    if before != json.loads(run.text):
        return True
    return run.after is not None and _has_changed(run.after)
