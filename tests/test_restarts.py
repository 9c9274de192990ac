"""Restarts of a run: what they refuse, what they print, and which files they leave alone."""

import json
import shutil

import pytest

from t5x_like import train
from tests.programs import tiny_t5


def settings(folder, **changes):
    made = tiny_t5.get_config(str(folder))
    made.train.steps, made.evaluate.batches = 2, 1
    made.update_from_flattened_dict({key.replace("__", "."): v for key, v in changes.items()})
    return made


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run of two steps, and of its text."""
    folder = tmp_path_factory.mktemp("trained")
    train.train(settings(folder))
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it, on what is another machine for all that the run knows."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path


def refused(capsys, made):
    """The line of a restart that is refused."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        train.train(made)
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*.json") if path.is_file()}


def test_a_refused_restart_leaves_the_config_as_it_was(run, capsys):
    before = contents(run / "run")
    line = refused(capsys, settings(run, data__seed=7, train__steps=4))
    assert "saved with seed=0 and cannot be restored with seed=7" in line
    assert contents(run / "run") == before


def test_a_restart_prints_what_has_changed_and_keeps_each_config(run, capsys):
    kept = run / "run" / "configs"
    assert [path.name for path in kept.iterdir()] == ["0001_step_0.json"]
    train.train(settings(run, train__steps=3, optimizer__learning_rate=0.02, loss__z_loss=1e-4))
    changes = [line for line in capsys.readouterr().out.splitlines() if "changed" in line]
    assert changes == [
        "changed since step 2: loss.z_loss: not set -> 0.0001",
        "changed since step 2: optimizer.learning_rate: 0.01 -> 0.02",
        "changed since step 2: train.steps: 2 -> 3",
    ]
    assert sorted(path.name for path in kept.iterdir()) == ["0001_step_0.json", "0002_step_2.json"]
    assert json.loads((kept / "0001_step_0.json").read_text())["train"]["steps"] == 2
    newest = (run / "run" / "config.json").read_text()
    assert newest == (kept / "0002_step_2.json").read_text()
    assert json.loads(newest)["optimizer"]["learning_rate"] == 0.02
