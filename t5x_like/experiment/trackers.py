"""Send the settings and metrics of a run to Weights & Biases or MLflow (`train.trackers`).

Their packages are imported only if the setting names them. The file trackers.json in the workdir
stores the ids that the run has there, so that a resumed run continues the same entries.
"""

import contextlib
import functools
import importlib
import json
import math
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from t5x_like import config, paths, reading
from t5x_like.config.run_settings import RunSettings
from t5x_like.experiment import reporting, run_folder
from t5x_like.experiment.command_line import writing
from t5x_like.names import choose

FILE = "trackers.json"
_SECONDS_AT_CHECKPOINT = 10.0  # that a checkpoint waits for metrics that are being sent
_SECONDS_AT_END = 120.0
_PARAM_LENGTH = 6000  # characters of a parameter that MLflow stores
_BATCH = 100  # parameters or metrics in a request to MLflow; the server's limits are 100 and 1000


class LoginError(ValueError):
    """The user is not logged in at a tracker."""


class Tracker(Protocol):
    """An entry of the run in a tracker.

    Attributes:
        identity: the keyword arguments that find the entry again, as strings.
    """

    identity: dict[str, str]

    def newest_step(self, name: str) -> int:
        """Return the last step whose value of a metric has been sent earlier; -1 if none has."""

    def send(self, step: int, values: Mapping[str, float]) -> None:
        """Send the metrics of a step."""

    def close(self, *, failed: bool) -> None:
        """Send what is buffered, and mark the entry as finished or failed."""


class WandbRun:
    """The run at Weights & Biases, whose environment variables set the account and the project.

    Args:
        settings: the run's settings, as nested dicts.
        workdir: its name is the run's name, unless WANDB_NAME is set. wandb writes its files there,
            unless WANDB_DIR is set.
        identity: `id`, `project` and `entity` of the run to continue; {} to create one.

    Raises:
        LoginError: the user is not logged in.
    """

    def __init__(
        self, settings: Mapping[str, Any], workdir: paths.Path, identity: Mapping[str, str]
    ):
        import wandb

        arguments: dict[str, str] = {"name": workdir.name, "dir": str(workdir)}
        unset = {"name": "WANDB_NAME", "dir": "WANDB_DIR"}
        if paths.in_bucket(workdir):
            del arguments["dir"]
        arguments = {key: text for key, text in arguments.items() if unset[key] not in os.environ}
        try:
            self._run = wandb.init(resume="allow", **arguments, **identity)
        except wandb.errors.UsageError as error:
            raise LoginError(
                f"train.trackers has 'wandb': {error} Without an account set WANDB_MODE=offline"
            ) from error
        self._run.config.update(dict(settings), allow_val_change=True)
        run = self._run
        identifiers = {"id": run.id, "project": run.project, "entity": run.entity}
        self.identity = {key: text for key, text in identifiers.items() if text}

    def newest_step(self, name: str) -> int:
        """Return the last step that W&B has of any metric: it rejects values of earlier steps.

        An offline run that is resumed does not know what an earlier process has stored: a kill
        loses some of it, so all steps are sent.
        """
        return self._run.step - 1

    def send(self, step: int, values: Mapping[str, float]) -> None:
        """Log the metrics of a step; wandb sends them in a process of its own."""
        self._run.log(dict(values), step=step)

    def close(self, *, failed: bool) -> None:
        """Wait until everything is sent, and end the run with an exit code."""
        self._run.finish(exit_code=int(failed))


class MlflowRun:
    """The run at MLflow, at the server or in the database of MLFLOW_TRACKING_URI.

    Args:
        settings: the run's settings, logged as parameters. Parameters cannot be changed: settings
            that a restart changes become tags.
        workdir: its name is the run's name, unless MLFLOW_RUN_NAME is set.
        identity: `run_id` of the run to continue; {} to create one.
    """

    def __init__(
        self, settings: Mapping[str, Any], workdir: paths.Path, identity: Mapping[str, str]
    ):
        import mlflow

        self._entities, self._client = mlflow.entities, mlflow.MlflowClient()
        self._continues = bool(identity)
        if identity:
            self._id = identity["run_id"]
            self._client.update_run(self._id, status="RUNNING")
        else:
            name = os.environ.get("MLFLOW_RUN_NAME", workdir.name)
            self._id = self._client.create_run(self._experiment(), run_name=name).info.run_id
        self.identity = {"run_id": self._id}
        self._log_settings(settings)

    def _experiment(self) -> str:
        """Return the id of the experiment that MLflow's environment variables name."""
        if number := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return number
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
        experiment = self._client.get_experiment_by_name(name)
        return experiment.experiment_id if experiment else self._client.create_experiment(name)

    def _log_settings(self, settings: Mapping[str, Any]) -> None:
        flat = run_folder.flat(settings)
        texts = {_name(key): str(value)[:_PARAM_LENGTH] for key, value in flat.items()}
        before = self._client.get_run(self._id).data.params
        new = [self._entities.Param(key, text) for key, text in texts.items() if key not in before]
        for part in _parts(new):
            self._client.log_batch(self._id, params=part)
        changed = {key for key in before.keys() & texts.keys() if before[key] != texts[key]}
        tags = [self._entities.RunTag(key, texts[key]) for key in sorted(changed)]
        for part in _parts(tags):
            self._client.log_batch(self._id, tags=part)

    def newest_step(self, name: str) -> int:
        """Return the last step of a metric at the server."""
        if not self._continues:
            return -1
        history = self._client.get_metric_history(self._id, _name(name))
        return max((metric.step for metric in history), default=-1)

    def send(self, step: int, values: Mapping[str, float]) -> None:
        """Log the metrics of a step, and wait for the server."""
        now = time.time_ns() // 1_000_000
        metrics = [
            self._entities.Metric(_name(name), value, now, step) for name, value in values.items()
        ]
        for part in _parts(metrics):
            self._client.log_batch(self._id, metrics=part)

    def close(self, *, failed: bool) -> None:
        """Set the status of the run."""
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


def _name(name: str) -> str:
    """Replace the characters that names in MLflow may not have."""
    return re.sub(r"[^\w\-. :/]", "_", name)


def _parts(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), _BATCH):
        yield values[start : start + _BATCH]


KINDS: dict[str, Callable[..., Tracker]] = {"wandb": WandbRun, "mlflow": MlflowRun}


class TrackerWriter:
    """A metrics writer that sends to a tracker in a thread, so that training does not wait for it.

    An error, for example of the network, is reported once on standard error. The tracker then gets
    nothing more from this process, and training continues.

    A value of a metric at a step that was sent before, by this process or before a restart, is not
    sent again. NaN and infinity are left out.

    Args:
        name: the name of the tracker, for error messages.
        begin: opens the entry of the run.

    Raises:
        LoginError: the user is not logged in.
    """

    def __init__(self, name: str, begin: Callable[[], Tracker]):
        self._title = name
        self._tracker: Tracker | None = None
        self._newest: dict[str, int] = {}
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        with self._one_report():
            self._tracker = begin()
        self._thread = threading.Thread(target=self._work, daemon=True, name=name)
        self._thread.start()

    @property
    def identity(self) -> dict[str, str] | None:
        """The identity of the entry; None if it could not be opened."""
        return None if self._tracker is None else self._tracker.identity

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Queue the metrics of a step, with the bounds of intervals as NAME/low and NAME/high."""
        values = {name: float(np.asarray(value)) for name, value in scalars.items()}
        values |= reporting.bounds(scalars)
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self._queue.put(functools.partial(self._send, int(step), finite))

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Ignore images, which TensorBoard shows."""

    def flush(self) -> None:
        """Wait for some seconds until the queue is sent."""
        sent = threading.Event()
        self._queue.put(sent.set)
        sent.wait(_SECONDS_AT_CHECKPOINT)

    def close(self) -> None:
        """Send the queue and close the entry, as failed if an exception is being handled.

        It waits two minutes at most.
        """
        failed = sys.exc_info()[0] is not None
        self._queue.put(functools.partial(self._close, failed))
        self._queue.put(None)
        self._thread.join(_SECONDS_AT_END)

    def _work(self) -> None:
        for task in iter(self._queue.get, None):
            task()

    def _send(self, step: int, values: Mapping[str, float]) -> None:
        if (tracker := self._tracker) is None:
            return
        with self._one_report():
            for name in values.keys() - self._newest.keys():
                self._newest[name] = tracker.newest_step(name)
            new = {name: value for name, value in values.items() if step > self._newest[name]}
            if new:
                tracker.send(step, new)
                self._newest |= dict.fromkeys(new, step)

    def _close(self, failed: bool) -> None:
        if self._tracker is not None:
            with self._one_report():
                self._tracker.close(failed=failed)

    @contextlib.contextmanager
    def _one_report(self) -> Iterator[None]:
        """Report an error in one line, and send nothing more."""
        try:
            yield
        except LoginError:
            raise
        except Exception as error:
            self._tracker = None
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            sys.stderr.write(f"{self._title} gets no more metrics of this run: {reason}\n")
            sys.stderr.flush()


def check(settings: RunSettings, workdir: paths.Path) -> None:
    """Check that the trackers exist and are installed, and that trackers.json can be read.

    Raises:
        ValueError: a name is unknown, a package is not installed, or the file is damaged.
    """
    for name in settings.train.trackers:
        choose("train.trackers", name, KINDS)
        try:
            package = importlib.import_module(name)
            if package.__file__ is None:  # a folder in the working directory with the same name
                raise ImportError(f"{name} is a folder here")
        except ImportError as error:
            raise ValueError(
                f"train.trackers={settings.train.trackers!r} needs the package {name}: "
                f"pip install 't5x_like[{name}]' ({error})"
            ) from error
    if settings.train.trackers:
        _read(workdir)


def open_writers(settings: RunSettings, workdir: paths.Path) -> list[TrackerWriter]:
    """Open the entries of a run in its trackers, or those that trackers.json names.

    Raises:
        LoginError: the user is not logged in.
        WriteError: trackers.json cannot be written.
    """
    if not settings.train.trackers:
        return []
    identities, writers = _read(workdir), []
    for name in settings.train.trackers:
        begin = functools.partial(
            KINDS[name], config.to_dict(settings), workdir, identities.get(name, {})
        )
        writers.append(writer := TrackerWriter(name, begin))
        if writer.identity is not None:
            identities[name] = writer.identity
    with writing(workdir / FILE):
        paths.write_whole(workdir / FILE, json.dumps(identities, indent=2) + "\n")
    return writers


def _read(workdir: paths.Path) -> dict[str, dict[str, str]]:
    """Return the identities in trackers.json; {} without the file."""
    path = workdir / FILE
    try:
        identities = reading.json_object(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: delete it to begin new runs ({error})") from error
    if not all(isinstance(identity, dict) for identity in identities.values()):
        raise ValueError(f"{path} has no ids of runs: delete it to begin new runs")
    return identities
