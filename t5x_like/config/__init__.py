"""Configs: config files are ml_collections, which `parse` turns into typed run settings."""

import contextlib
import dataclasses
import gc
import json
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import ml_collections

from t5x_like import paths
from t5x_like.config import run_settings
from t5x_like.config.run_settings import LARGEST, RunSettings, check_renamed, to_dict
from t5x_like.names import note_code

__all__ = [
    "LARGEST",
    "SETTINGS",
    "RunSettings",
    "check_renamed",
    "defaults",
    "editable",
    "load",
    "of_stored",
    "one_line_errors",
    "parse",
    "to_dict",
]

# {dotted name of a setting: (default, meaning)}
SETTINGS = {name: (default, text) for name, default, text in run_settings.documentation()}


def defaults() -> ml_collections.ConfigDict:
    """Return a config with every setting at its default, for a file in configs/ to change."""
    return editable(RunSettings())


def editable(settings: RunSettings) -> ml_collections.ConfigDict:
    """Return a config with these settings, to be changed and parsed again."""
    return ml_collections.ConfigDict(dataclasses.asdict(settings))


def parse(config: ml_collections.ConfigDict) -> RunSettings:
    """Return a config as immutable typed settings, with field references resolved.

    Raises:
        ValueError: see `run_settings.read`.
    """
    return run_settings.read(config.to_dict())


def of_stored(stored: Mapping[str, Any]) -> RunSettings:
    """Return the settings that a run wrote; settings newer than the run get their defaults.

    Raises:
        ValueError: see `run_settings.read`.
    """
    return run_settings.read(_upgraded(stored))


def load(path: paths.Path | str) -> ml_collections.ConfigDict:
    """Load the config.json that a run wrote, as a config that can be changed.

    Raises:
        ValueError: the file is not a JSON object of settings; see also `of_stored`.
    """
    try:
        stored = json.loads(paths.path(path).read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(stored, dict):
        raise ValueError(f"{path} has a JSON {type(stored).__name__}, and no settings")
    note_code(stored, folder=path)
    return editable(of_stored(stored))


def _upgraded(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the settings of an older run to their present names."""
    tree = dict(stored)
    if score := dict(tree.pop("score", None) or {}):  # now in evaluate.measures
        predictions = score.pop("predictions", "")
        evaluation = {"predictions": predictions, "measures": {score["kind"]: score}}
        tree["evaluate"] = {**tree.get("evaluate", {}), **evaluation}
    return tree


@contextlib.contextmanager
def one_line_errors(*kinds: type[Exception], status: int = 2) -> Iterator[None]:
    """Turn errors of these kinds into one line on standard error and an exit status.

    Without `kinds`, catch the errors that wrong settings and files cause: ValueError and OSError.
    """
    try:
        yield
    except kinds or (ValueError, OSError) as error:  # noqa: B030 - a tuple of classes
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        _release(error)
        sys.exit(status)


def _release(error: BaseException) -> None:
    """Free what the frames of an error hold.

    A tf.data iterator that is freed only when the interpreter ends waits for its threads, which by
    then wait for the interpreter: the process would never end.
    """
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
    gc.collect()
