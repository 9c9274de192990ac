"""Modules that record what a run sends, with the calls of wandb and mlflow that runs make.

`answers` has what these calls return; tests/programs/real_trackers.py compares it with the real
packages.
"""

import pathlib
import re
import sys
import types
from typing import Any

import pytest


class Wandb(types.ModuleType):
    """The package wandb: `runs` is what the server has, {id: {...}}.

    Attributes:
        offline: whether a run that is continued knows what it had before.
        error: raised by the next calls; None for none.
    """

    def __init__(self):
        super().__init__("wandb")
        self.__file__ = "wandb/__init__.py"
        self.errors = types.SimpleNamespace(UsageError=type("UsageError", (Exception,), {}))
        self.runs, self.offline, self.error, self.arguments = {}, False, None, []

    def init(self, *, resume, id=None, project=None, entity=None, name=None, dir=None):  # noqa: A002
        assert resume == "allow"
        _raise(self.error)
        self.arguments.append({"id": id, "name": name, "dir": dir})
        id = id or f"run{len(self.runs)}"  # noqa: A001
        self.runs.setdefault(id, {"config": {}, "rows": [], "exit_codes": []})
        return _WandbRun(self, id)


class _WandbRun:
    project, entity = "uncategorized", ""

    def __init__(self, package, id):  # noqa: A002
        self.id, self._package, self._own = id, package, package.runs[id]
        rows = self._own["rows"]
        self.step = rows[-1][0] + 1 if rows and not package.offline else 0
        self.config = types.SimpleNamespace(update=self._update)

    def _update(self, values, *, allow_val_change):
        assert allow_val_change
        self._own["config"].update(values)

    def log(self, values, *, step):
        _raise(self._package.error)
        if step >= self.step:
            self._own["rows"].append((step, values))
            self.step = step

    def finish(self, *, exit_code):
        _raise(self._package.error)
        self._own["exit_codes"].append(exit_code)


class Mlflow(types.ModuleType):
    """The package mlflow: `runs` is what the server has, {id: {...}}."""

    def __init__(self):
        super().__init__("mlflow")
        self.__file__ = "mlflow/__init__.py"
        self.entities = types.SimpleNamespace(
            Metric=lambda key, value, timestamp, step: (key, value, step),
            Param=lambda key, value: (key, value),
            RunTag=lambda key, value: (key, value),
        )
        self.runs, self.error = {}, None
        self.experiments = {"Default": "0"}

    def MlflowClient(self):  # noqa: N802
        return _Client(self)


class _Client:
    def __init__(self, package):
        self._package = package

    def get_experiment_by_name(self, name):
        found = self._package.experiments.get(name)
        return found and types.SimpleNamespace(experiment_id=found)

    def create_experiment(self, name):
        return self._package.experiments.setdefault(name, str(len(self._package.experiments)))

    def create_run(self, experiment_id, *, run_name):
        _raise(self._package.error)
        own = {"experiment": experiment_id, "name": run_name, "status": "RUNNING"}
        run_id = f"run{len(self._package.runs)}"
        self._package.runs[run_id] = own | {"params": {}, "tags": {}, "metrics": []}
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id))

    def update_run(self, run_id, *, status):
        self._package.runs[run_id]["status"] = status

    def get_run(self, run_id):
        own = self._package.runs[run_id]
        return types.SimpleNamespace(
            data=types.SimpleNamespace(params=dict(own["params"]), tags=own["tags"]),
            info=types.SimpleNamespace(status=own["status"], run_name=own["name"]),
        )

    def log_batch(self, run_id, *, metrics=(), params=(), tags=()):
        _raise(self._package.error)
        assert len(metrics) + len(params) + len(tags) <= 100
        own = self._package.runs[run_id]
        if any(own["params"].get(key, text) != text for key, text in params):
            raise ValueError("Changing param values is not allowed")
        for name, *_ in (*metrics, *params, *tags):
            if not re.fullmatch(r"[/\w.\- :]*", name):
                raise ValueError(f"Invalid value {name!r}")
        own["params"] |= dict(params)
        own["tags"] |= dict(tags)
        own["metrics"] += metrics

    def get_metric_history(self, run_id, key):
        _raise(self._package.error)
        metrics = self._package.runs[run_id]["metrics"]
        return [types.SimpleNamespace(step=step) for name, _, step in metrics if name == key]

    def set_terminated(self, run_id, status):
        _raise(self._package.error)
        self._package.runs[run_id]["status"] = status


def _raise(error):
    if error is not None:
        raise error


def install(monkeypatch: pytest.MonkeyPatch) -> tuple[Wandb, Mlflow]:
    """Let `import wandb` and `import mlflow` find the stand-ins."""
    wandb, mlflow = Wandb(), Mlflow()
    for name in ("WANDB_NAME", "WANDB_DIR", "MLFLOW_RUN_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    return wandb, mlflow


def answers(wandb: Any, mlflow: Any, folder: pathlib.Path) -> list[Any]:
    """What the packages answer to the calls of t5x_like/experiment/trackers.py, W&B offline."""
    run = wandb.init(resume="allow", name="first", dir=str(folder))
    # The project is named after the folder of a git repository, or "uncategorized".
    found = [run.step, type(run.project), run.entity]
    for step, name in ((20, "a"), (20, "b"), (10, "a"), (21, "a")):
        run.log({name: 1.0}, step=step)
        found.append(run.step)
    for steps in (4, 6):
        run.config.update({"train": {"steps": steps}}, allow_val_change=True)
    run.finish(exit_code=0)
    run = wandb.init(resume="allow", name="first", dir=str(folder), id=run.id, project=run.project)
    found.append(run.step)
    run.finish(exit_code=1)
    return found + _answers_of_mlflow(mlflow)


def _answers_of_mlflow(mlflow: Any) -> list[Any]:
    client, entities = mlflow.MlflowClient(), mlflow.entities
    found = [client.get_experiment_by_name("none"), type(client.create_experiment("new"))]
    default = client.get_experiment_by_name("Default").experiment_id
    run_id = client.create_run(default, run_name="first").info.run_id

    def state() -> list[Any]:
        run = client.get_run(run_id)
        own_tags = {key: text for key, text in run.data.tags.items() if "mlflow." not in key}
        return [run.info.status, run.info.run_name, dict(run.data.params), own_tags]

    def log(**values: Any) -> None:
        try:
            client.log_batch(run_id, **values)
        except Exception as error:
            found.append(
                re.findall("Changing param values is not allowed|Invalid value", str(error))
            )

    log(params=[entities.Param(f"p/{i}", "1") for i in range(3)])
    log(params=[entities.Param("p/1", "2")])
    log(params=[entities.Param("p/1", "1")])
    log(tags=[entities.RunTag("p/1", "2")])
    for name in ("train/loss", "\u7ffb\u8a33/a-b_c. :1", "a(b)", "a,b"):
        log(metrics=[entities.Metric(name, 1.5, 0, 3)])
    log(metrics=[entities.Metric("train/loss", 2.5, 0, 9)])
    found += state()
    client.set_terminated(run_id, "FAILED")
    found += state()
    client.update_run(run_id, status="RUNNING")
    found += state()
    log(metrics=[entities.Metric("train/loss", 0.5, 0, 12)])
    for name in ("train/loss", "none"):
        found.append([metric.step for metric in client.get_metric_history(run_id, name)])
    return found
