"""The folder of a run, `workdir`: checks that the run can start or resume there."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from t5x_like import checkpoints, config, paths
from t5x_like.config.run_settings import RunSettings
from t5x_like.experiment import command_line, optimizer_state
from t5x_like.experiment.run import Run


def find(settings: RunSettings) -> pathlib.Path:
    """Return the workdir of a config, which need not exist; nothing is written to it.

    Raises:
        ValueError: it is not set, not a folder, not writable, or in a bucket that cannot be read.
    """
    if not settings.workdir:
        raise ValueError("workdir is not set: --config.workdir=FOLDER")
    command_line.check_folder("workdir", settings.workdir)
    if paths.in_bucket(settings.workdir) and settings.train.profile_at:
        raise ValueError(
            f"train.profile_at={settings.train.profile_at}: a profile goes to a folder of the "
            "machine, and the workdir is in a bucket: set 0, or profile with another workdir"
        )
    return paths.path(settings.workdir)


@dataclasses.dataclass(frozen=True)
class Stored:
    """The metadata in the newest checkpoint of a workdir.

    Attributes:
        step: the step of the checkpoint.
        config: the run's config, as plain JSON values.
        shards: the number of shards in which the run reads its data.
        fingerprints: of its vocabulary and data files, {} in older checkpoints.
    """

    step: int
    config: dict[str, Any]
    shards: int
    fingerprints: dict[str, Any]


def stored(workdir: pathlib.Path, run: Run) -> Stored | None:
    """Read the metadata of the newest checkpoint of a workdir; None if there is no checkpoint.

    Raises:
        ValueError: the config cannot resume the run there; or, without a checkpoint, `initialize`
            is not the folder of a model.
    """
    folder, settings = workdir / "checkpoints", run.settings
    if not checkpoints.agreed_steps(folder):
        if settings.initialize_optimizer:
            optimizer_state.find(run)
        elif settings.initialize:
            run.check_source()
        return None
    found = checkpoints.read_metadata(folder)
    if "data_shards" not in found:
        raise ValueError(
            f"workdir={settings.workdir!r} has converted weights, and no run to resume: set "
            "initialize to that folder, and workdir to another"
        )
    if (system := found["config"]["system"]) != settings.system:
        raise ValueError(
            f"workdir={settings.workdir!r} has a run of system {system!r}, and this config has "
            f"system={settings.system!r}: set another workdir"
        )
    return Stored(
        step=found["step"],
        config=found["config"],
        shards=found["data_shards"],
        fingerprints=found.get("fingerprints", {}),
    )


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the settings in which two configs differ, as lines `train.steps: 100 -> 200`.

    Settings newer than the first config count as defaults in it. `workdir` is left out, and
    `data.shards`, which a run keeps.
    """
    old, new = _flat(config.to_dict(config.of_stored(before))), _flat(now)
    absent = "not set"
    return [
        f"{key}: {json.dumps(old[key]) if key in old else absent} -> "
        f"{json.dumps(new[key]) if key in new else absent}"
        for key in sorted(old.keys() | new.keys())
        if key not in ("workdir", "data.shards") and old.get(key, absent) != new.get(key, absent)
    ]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        is_part = isinstance(value, Mapping)
        found |= _flat(value, f"{prefix}{key}.") if is_part else {f"{prefix}{key}": value}
    return found


def write_config(settings: RunSettings, workdir: pathlib.Path, *, step: int) -> None:
    """Write config.json, and a copy configs/NUMBER_step_STEP.json if the config has changed.

    Writes are atomic: a kill leaves the old config.json or the new one.

    Args:
        step: the step at which the run starts or resumes.
    """
    text = json.dumps(config.to_dict(settings), indent=2) + "\n"
    kept = sorted((workdir / "configs").glob("*_step_*.json"))
    if not kept or kept[-1].read_text() != text:
        (workdir / "configs").mkdir(exist_ok=True)
        _write(workdir / "configs" / f"{len(kept) + 1:04d}_step_{step}.json", text)
    _write(workdir / "config.json", text)


def _write(path: pathlib.Path, text: str) -> None:
    with command_line.writing(path):
        paths.write_whole(path, text)
