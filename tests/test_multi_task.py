"""A BERT trained on classes and numbers in one run, as MT-DNN trains: one task a batch."""

import json

import numpy as np
import pytest

from t5x_like import evaluate, infer, train
from t5x_like.config import parse
from tests.programs import command_flags, tiny_encoder
from tests.test_fine_tuning import WORDS, classification, config_file, regression, write

STEPS = 240


def task(folder, kind, name, **model):
    made = config_file("fine_tuning")(kind).data
    files = {split: str(folder / name / f"{split}.jsonl") for split in ("train", "validation")}
    settings = {**made.settings.to_dict(), **files, "name": name}
    return {
        "model": {"head": kind, **model},
        "share": 1.0,
        "data": {"task": name, "objective": kind, "settings": settings},
    }


def config(folder):
    made = config_file("fine_tuning")("classification")
    made.initialize = str(folder / "pretrained")
    made.workdir = str(folder / "run")
    made.data.lengths.inputs = 24
    made.train.steps = STEPS
    made.train.log_every = 60
    made.optimizer.learning_rate = 1e-3
    made.checkpoint.every = STEPS
    made.evaluate.every = 0
    del made.model.head, made.model.labels
    made.tasks = {
        "topic": task(folder, "classification", "topic", labels=3),
        "count": task(folder, "regression", "count"),
    }
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("multi_task")
    tiny_encoder.write(folder / "pretrained", "bert", words=WORDS)
    for name, make in (("topic", classification), ("count", regression)):
        (folder / name).mkdir()
        write(folder / name / "train.jsonl", make, rows=1500, seed=0)
        write(folder / name / "validation.jsonl", make, rows=200, seed=1)
    train.main(parse(config(folder)))
    return folder


@pytest.mark.slow
def test_both_tasks_are_learned_logged_and_evaluated(folder, monkeypatch):
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    logged = {name for line in lines for name in json.loads(line)}
    assert {"train/topic/accuracy", "train/count/loss"} <= logged
    command_flags.give(monkeypatch)
    evaluate.main(parse(config_file("run")(str(folder / "run"))))
    measured = json.loads((folder / "run" / "evaluation.json").read_text())["tasks"]
    topic, count = (
        next(values for name, values in measured.items() if kind in name)
        for kind in ("topic", "count")
    )
    assert topic["accuracy"] > 0.9
    rows = (folder / "count" / "validation.jsonl").read_text().splitlines()
    variance = np.var([json.loads(row)["value"] for row in rows])
    assert count["squared_error"] < 0.3 * variance


@pytest.mark.slow
def test_infer_predicts_with_the_head_of_the_named_task(folder, tmp_path, monkeypatch, capsys):
    run = config_file("run")(str(folder / "run"))
    output = tmp_path / "predictions.jsonl"
    for task, field in (("topic", "label"), ("count", "value")):
        source = folder / task / "validation.jsonl"
        command_flags.give(monkeypatch, task=task, input=str(source), output=str(output))
        infer.main(parse(run))
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        found = [row["prediction"] for row in rows]
        truth = [row["inputs"][field] for row in rows]
        assert len(found) == 200
        if task == "topic":
            assert np.mean(np.equal(found, truth)) > 0.9
        else:
            assert np.mean(np.square(np.subtract(found, truth))) < 0.3 * np.var(truth)
    command_flags.give(monkeypatch, input=str(source))
    with pytest.raises(SystemExit):
        infer.main(parse(run))
    assert capsys.readouterr().err == (
        "error: --task is not set, and this run has several tasks: choose one of count, topic\n"
    )
