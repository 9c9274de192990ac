"""What a run sends to Weights & Biases and MLflow: settings once, each step once, errors never.

The packages are stand-ins; tests/programs/real_trackers.py trains with the real ones.
"""

import contextlib
import dataclasses
import json
import sys
import time

import jax
import numpy as np
import pytest

from t5x_like import train
from t5x_like.config import RunSettings, parse
from t5x_like.config.run_settings import TrainSettings
from t5x_like.experiment import reporting, trackers
from t5x_like.experiment.reporting import Estimate
from tests.programs import tiny_t5, tracker_stand_ins

BOTH = ("wandb", "mlflow")


@pytest.fixture
def packages(monkeypatch):
    """The stand-ins for wandb and mlflow."""
    return tracker_stand_ins.install(monkeypatch)


@pytest.fixture
def workdir(tmp_path):
    """The folder of a run."""
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def settings(names=BOTH, **changes):
    return RunSettings(train=TrainSettings(trackers=names, **changes))


def write(workdir, steps, made=None):
    """One process of a run that logs these steps."""
    with contextlib.closing(train.open_writer(made or settings(), workdir)) as writer:
        for step in steps:
            writer.write_scalars(step, {"train/loss": 100.0 - step})
            if step % 20 == 0:
                writer.write_scalars(step, {"held_out/loss": 200.0 - step})
            writer.flush()


def sent(packages):
    """(step, name, value) of all metrics at each of the two."""
    wandb, mlflow = packages
    [at_wandb], [at_mlflow] = wandb.runs.values(), mlflow.runs.values()
    rows = [(step, name, v) for step, row in at_wandb["rows"] for name, v in row.items()]
    return rows, [(step, name, v) for name, v, step in at_mlflow["metrics"]]


def expected(steps):
    rows = [(step, "train/loss", 100.0 - step) for step in steps]
    return sorted(rows + [(s, "held_out/loss", 200.0 - s) for s in steps if s % 20 == 0])


def test_settings_are_sent_and_each_step(packages, workdir):
    write(workdir, [10, 20])
    for found in sent(packages):
        assert sorted(found) == expected([10, 20])
    wandb, mlflow = packages
    [at_wandb], [at_mlflow] = wandb.runs.values(), mlflow.runs.values()
    assert wandb.arguments == [{"id": None, "name": "run", "dir": str(workdir)}]
    assert at_wandb["config"]["train"]["trackers"] == list(BOTH)
    assert at_mlflow["params"]["train.trackers"] == str(list(BOTH))
    assert (at_mlflow["name"], at_mlflow["experiment"]) == ("run", "0")
    assert (at_wandb["exit_codes"], at_mlflow["status"]) == ([0], "FINISHED")
    assert json.loads((workdir / trackers.FILE).read_text()) == {
        "wandb": {"id": "run0", "project": "uncategorized"},
        "mlflow": {"run_id": "run0"},
    }


@pytest.mark.parametrize("offline", [False, True])
def test_a_restart_continues_the_runs_and_repeats_no_step(offline, packages, workdir):
    packages[0].offline = offline
    write(workdir, [10, 20, 30])
    write(workdir, [20, 30, 40], settings(steps=40))  # from the checkpoint at step 10
    at_wandb, at_mlflow = sent(packages)
    assert sorted(at_mlflow) == expected([10, 20, 30, 40])
    # What a kill lost of an offline run is unknown: it has the repeated steps in both folders.
    repeated = [20, 30] if offline else []
    assert sorted(at_wandb) == sorted(expected([10, 20, 30, 40]) + expected(repeated))
    wandb, mlflow = packages
    [at_wandb], [at_mlflow] = wandb.runs.values(), mlflow.runs.values()
    assert at_wandb["config"]["train"]["steps"] == 40
    assert (at_mlflow["params"]["train.steps"], at_mlflow["tags"]) == (
        "1000",
        {"train.steps": "40"},
    )


def test_an_evaluation_that_a_kill_cut_off_is_sent_after_the_restart(packages, workdir):
    with contextlib.closing(train.open_writer(settings(), workdir)) as writer:
        writer.write_scalars(20, {"train/loss": 80.0})
    write(workdir, [20])
    assert sorted(sent(packages)[1]) == expected([20])


def test_after_a_return_to_a_checkpoint_the_first_values_stay(packages, workdir):
    write(workdir, [10, 20, 10, 20, 30])
    for found in sent(packages):
        assert sorted(found) == expected([10, 20, 30])


def test_intervals_have_bounds_and_what_is_not_finite_is_left_out(packages, workdir):
    values = {"f1": Estimate(0.75, np.arange(101) / 100), "loss": float("nan")}
    with contextlib.closing(train.open_writer(settings(), workdir)) as writer:
        writer.write_scalars(3, values)
        writer.write_scalars(3, {"odd(name)": 1.0, "翻訳/loss": 2.0, "要約/loss": 3.0})
    at_wandb, at_mlflow = sent(packages)
    known = [(3, "f1", 0.75), (3, "f1/low", 0.025), (3, "f1/high", 0.975)]
    tasks = [(3, "翻訳/loss", 2.0), (3, "要約/loss", 3.0)]
    assert at_wandb == [*known, (3, "odd(name)", 1.0), *tasks]
    assert at_mlflow == [*known, (3, "odd_name_", 1.0), *tasks]


@pytest.mark.parametrize("when", ["at the start", "at a step", "at the end"])
def test_an_error_is_one_line_and_ends_nothing(when, packages, workdir, capsys):
    error = ConnectionError("no route\nto host")

    def fail(now):
        if now == when:
            for package in packages:
                package.error = error

    fail("at the start")
    with contextlib.closing(train.open_writer(settings(), workdir)) as writer:
        writer.write_scalars(1, {"train/loss": 2.0})
        writer.flush()
        fail("at a step")
        writer.write_scalars(2, {"train/loss": 1.0})
        writer.write_scalars(3, {"train/loss": 0.5})
        writer.flush()
        fail("at the end")
    assert sorted(capsys.readouterr().err.splitlines()) == [
        f"{name} gets no more metrics of this run: no route to host" for name in sorted(BOTH)
    ]
    assert reporting.read_log(workdir) == {"train/loss": {1: 2.0, 2: 1.0, 3: 0.5}}


def test_a_server_that_does_not_answer_holds_up_no_step(packages, workdir, monkeypatch):
    monkeypatch.setattr(trackers, "_SECONDS_AT_CHECKPOINT", 0.05)
    monkeypatch.setattr(trackers, "_SECONDS_AT_END", 0.05)
    monkeypatch.setattr(trackers.MlflowRun, "send", lambda *_: time.sleep(30))
    start = time.monotonic()
    write(workdir, range(1, 10), settings(("mlflow",)))
    assert time.monotonic() - start < 10


def test_a_run_that_ends_with_an_error_is_marked(packages, workdir):
    def fail():
        with contextlib.ExitStack() as opened:
            opened.enter_context(contextlib.closing(train.open_writer(settings(), workdir)))
            sys.exit(3)

    with pytest.raises(SystemExit):
        fail()
    wandb, mlflow = packages
    assert [run["exit_codes"] for run in wandb.runs.values()] == [[1]]
    assert [run["status"] for run in mlflow.runs.values()] == ["FAILED"]


def test_the_experiment_is_the_one_of_the_environment(packages, workdir, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "t5")
    monkeypatch.setenv("MLFLOW_RUN_NAME", "first")
    write(workdir, [], settings(("mlflow",)))
    [run] = packages[1].runs.values()
    assert (run["name"], run["experiment"]) == ("first", packages[1].experiments["t5"])


def test_only_the_first_process_sends(packages, workdir, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    write(workdir, [10])
    assert [package.runs for package in packages] == [{}, {}]


def test_without_an_account_the_command_that_helps_is_named(packages, workdir):
    packages[0].error = packages[0].errors.UsageError("No API key. Use `wandb login` to log in.")
    with pytest.raises(ValueError, match=r"'wandb': .*wandb login.*WANDB_MODE=offline"):
        train.open_writer(settings(), workdir)


@pytest.mark.parametrize("way", ["absent", "a folder"])
def test_a_package_that_is_not_installed_is_named(way, workdir, monkeypatch):
    if way == "absent":
        monkeypatch.setitem(sys.modules, "wandb", None)
    else:  # wandb writes a folder of its name into the working directory
        (workdir / "wandb").mkdir()
        monkeypatch.delitem(sys.modules, "wandb", raising=False)
        monkeypatch.setattr(sys, "path", [str(workdir)])
    with pytest.raises(
        ValueError, match=r"needs the package wandb: pip install 't5x_like\[wandb\]'"
    ):
        trackers.check(settings(("wandb",)), workdir)


@pytest.mark.parametrize("text", ["", "[1]", '{"wandb": 3}'])
def test_a_damaged_file_of_ids_is_named(text, packages, workdir):
    (workdir / trackers.FILE).write_text(text)
    with pytest.raises(ValueError, match=r"trackers\.json .*delete it"):
        trackers.check(settings(), workdir)


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_training_sends_what_it_logs(packages, tmp_path):
    made = tiny_t5.get_config(str(tmp_path))
    made.train.trackers = BOTH
    run = parse(made)
    train.main(dataclasses.replace(run, train=dataclasses.replace(run.train, steps=2)))
    train.main(run)
    log = reporting.read_log(tmp_path / "run")
    assert sorted(log["train/loss"]) == [1, 2, 3, 4]
    logged = sorted((step, name, v) for name, own in log.items() for step, v in own.items())
    for found in sent(packages):
        assert sorted(found) == logged
