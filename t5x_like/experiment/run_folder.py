"""The folder of a run, `workdir`: checks before training that the run can begin or go on there."""

import json
import pathlib

import ml_collections

from t5x_like import checkpoints, config
from t5x_like.experiment import command_line
from t5x_like.pretrained.weight_source import open_source


def find(settings: ml_collections.ConfigDict) -> pathlib.Path:
    """The workdir of a config, which need not exist; nothing is written to it.

    Raises:
        ValueError: it is not set, not on this machine, no folder or not writable.
    """
    if not settings.workdir:
        raise ValueError("workdir is not set: --config.workdir=FOLDER")
    if "://" in settings.workdir:  # as a path it would be a folder of this machine named "gs:"
        raise ValueError(
            f"workdir={settings.workdir!r} must be a folder of this machine: mount the bucket and "
            "give a folder in it (docs/launching.md)"
        )
    command_line.check_folder("workdir", settings.workdir)
    return pathlib.Path(settings.workdir)


def stored_shards(workdir: pathlib.Path, settings: ml_collections.ConfigDict) -> int | None:
    """The shards of the data of the run that a workdir has; None where it has none.

    Raises:
        ValueError: the config cannot go on from what is there; or, where nothing is, `initialize`
            is not the folder of a model.
    """
    folder = workdir / "checkpoints"
    if not checkpoints.checkpoint_steps(folder):
        if settings.initialize:
            open_source(pathlib.Path(settings.initialize).expanduser())
        return None
    stored = checkpoints.read_metadata(folder)
    if "data_shards" not in stored:
        raise ValueError(
            f"workdir={settings.workdir!r} has converted weights, and no run to resume: set "
            "initialize to that folder, and workdir to another"
        )
    if (system := stored["config"]["system"]) != settings.system:
        raise ValueError(
            f"workdir={settings.workdir!r} has a run of system {system!r}, and this config has "
            f"system={settings.system!r}: set another workdir"
        )
    return stored["data_shards"]


def write_config(settings: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
    """Write config.json."""
    text = json.dumps(config.to_dict(settings), indent=2)
    (workdir / "config.json").write_text(text + "\n")
