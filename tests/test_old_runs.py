"""A run of an earlier version is read, evaluated and resumed: golden/make_old_run.py wrote it."""

import json
import pathlib
import shutil

import pytest

from configs import run
from t5x_like import config, evaluate, from_pretrained, train
from t5x_like.config import parse
from t5x_like.experiment import reporting
from tests.programs import command_flags

ROOT = pathlib.Path(__file__).parents[1]
# What the earlier version logged, on two devices, at the step of the folder and four steps later.
# Another number of devices sums in another order.
LOSSES = {
    4: {"topics/topics/cross_entropy": 0.6929376721382141, "scores/scores/loss": 5.247794151306152},
    8: {"topics/topics/cross_entropy": 0.691266655921936, "scores/scores/loss": 4.99633264541626},
}
ROUNDING = 1e-4


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)  # its files have relative paths
    return shutil.copytree(ROOT / "tests" / "golden" / "old_run" / "run", tmp_path / "run")


@pytest.fixture
def settings(folder):
    made = run.get_config(str(folder))
    made.mesh.data = -1
    return made


def test_its_config_is_read(folder):
    stored = json.loads((folder / "config.json").read_text())
    # Newer than the run: their defaults.
    stored["initialize_layers"] = -1
    stored["weights"] = "float32"
    stored["data"]["driver"] = ""
    stored["train"]["trackers"] = []
    stored["cost"] = {"watts": 0.0, "pue": 1.1, "kg_per_kwh": 0.429, "price": 0.0}
    stored["lora"] = {"rank": 0, "alpha": 16.0, "targets": ["*attention"]}
    assert config.to_dict(parse(config.load(folder / "config.json"))) == stored


def test_its_parameters_are_read(folder):
    model = from_pretrained(folder)
    assert (model.system, sorted(model.config["head"])) == ("bert", ["scores", "topics"])


def test_it_is_evaluated(settings, folder, monkeypatch):
    command_flags.give(monkeypatch)
    evaluate.main(parse(settings))
    found = json.loads((folder / "evaluation.json").read_text())
    for name, value in LOSSES[4].items():
        task, number = name.rsplit("/", 1)
        assert found["tasks"][task][number] == pytest.approx(value, rel=ROUNDING)


def test_it_is_resumed(settings, folder, capsys):
    settings.train.steps = 8
    train.main(parse(settings))
    assert "going on from step 4" in capsys.readouterr().out
    log = reporting.read_log(folder)
    for name, value in LOSSES[8].items():
        assert log[name][8] == pytest.approx(value, rel=ROUNDING)
