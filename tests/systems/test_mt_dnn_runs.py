"""MT-DNN in runs: batches of one task by epochs, the encoder of a BERT, resuming, bad input."""

import collections
import importlib
import json
import shutil

import jax
import numpy as np
import pytest

from t5x_like import checkpoints, evaluate, infer, train
from t5x_like.checkpoints import reading
from t5x_like.config import parse
from t5x_like.experiment import completion, model_side, reporting
from t5x_like.experiment.run import of_config
from t5x_like.reading import labelled_text
from tests.programs import command_flags, tiny_encoder
from tests.test_fine_tuning import WORDS, config_file, multiple_choice, pairs, write

mt_dnn = importlib.import_module("configs.mt_dnn")
STEPS = 10
FIELDS = {
    "pairs": {"text_a": "text_a", "text_b": "text_b", "label": "label", "labels": ()},
    "answers": {"text_a": "text_a", "text_b": "", "choices": "choices", "answer": "answer"},
}


def task(folder, name, head, **more):
    files = {split: str(folder / f"{name}-{split}.jsonl") for split in ("train", "validation")}
    settings = {**files, "name": name, **FIELDS[name]}
    return mt_dnn.task(name, head, settings=settings, **more)


def settings(folder, *, steps=STEPS):
    """A run on 40 rows of pairs in batches of 16, and on 24 of rankings in batches of 8."""
    made = mt_dnn.get_config("demo")
    made.initialize = str(folder / "bert")
    made.workdir = str(folder / "run")
    made.data.module = "data/labelled_files.py"
    made.data.lengths = {"inputs": 16}
    made.data.batch_size = 16
    made.data.shards = 2
    made.tasks = {
        "pairs": task(folder, "pairs", "pair_classification"),
        "answers": task(folder, "answers", "ranking", batch_size=8),
    }
    made.train.steps = steps
    made.train.log_every = 1
    made.checkpoint.every, made.checkpoint.keep = 1, 100
    made.evaluate.every = 0
    made.evaluate.measures = {"loss": {}}
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mt_dnn")
    tiny_encoder.write(folder / "bert", "bert", words=WORDS)
    for name, make, rows in (("pairs", pairs, 40), ("answers", multiple_choice, 24)):
        write(folder / f"{name}-train.jsonl", make, rows=rows, seed=0)
        write(folder / f"{name}-validation.jsonl", make, rows=16, seed=1)
    return folder


@pytest.fixture(scope="module")
def run(folder):
    """The folder of a run of ten steps."""
    train.main(parse(settings(folder)))
    return folder / "run"


def stored(workdir, step):
    folder = reading.newest_intact(workdir / "checkpoints" / str(step))
    return {
        item: reading._restore_arrays(folder / item, None, cast=False)
        for item in (reading.PARAMS, reading.TRAINING)
    }


def same(found, expected):
    return jax.tree.leaves(jax.tree.map(np.array_equal, found, expected))


def test_an_epoch_is_one_pass_over_the_rows_of_each_task(folder):
    tasks = completion.complete(of_config(settings(folder))).parts
    batches = {one.name: one.batches for one in tasks}
    assert batches == {"pairs": 3, "answers": 3}  # 40 rows by 16, and 24 by 8
    choose = train.choose_by_step(tasks, seed=0)
    for first in range(0, 60, 6):
        assert collections.Counter(choose(step) for step in range(first, first + 6)) == batches


def test_the_encoder_and_the_pooler_are_berts(folder):
    start = model_side.build_tasks(completion.complete(of_config(settings(folder))))[
        "pairs"
    ].initial_state()
    source = checkpoints.restore_params(folder / "bert")[0]
    for part in ("embeddings", "encoder"):
        assert all(same(start.params[part], source[part]))
    assert all(same(start.params["head"]["summary"], source["head"]["summary"]))


@pytest.mark.slow
def test_heads_change_in_the_steps_of_their_task_and_the_encoder_in_all(folder, run):
    choose = train.choose_by_step(completion.complete(of_config(settings(folder))).parts, seed=0)
    log = reporting.read_log(run)
    before = stored(run, 1)["params"]
    for step in range(2, STEPS + 1):
        after = stored(run, step)["params"]
        own = next(name for name in FIELDS if step in log[f"train/{name}/loss"])
        assert own == choose(step - 1)
        still = {name: all(same(before["head"][name], after["head"][name])) for name in FIELDS}
        assert still == {name: name != own for name in FIELDS}
        assert not any(same(before["encoder"], after["encoder"]))
        before = after


@pytest.mark.slow
def test_a_killed_run_goes_on_bit_for_bit_in_the_middle_of_an_epoch(folder, run, tmp_path):
    again = settings(folder)
    again.workdir = str(tmp_path / "run")
    shutil.copytree(run, tmp_path / "run")
    for step in range(5, STEPS + 1):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / str(step))
    train.main(parse(again))
    assert all(same(stored(tmp_path / "run", STEPS), stored(run, STEPS)))


def bad(folder, **changes):
    made = settings(folder)
    with made.unlocked(), made.ignore_type():
        made.update_from_flattened_dict({key.replace("__", "."): v for key, v in changes.items()})
    return made


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": {}}, "tasks is empty, and model.head is not set"),
        (
            {"tasks__pairs__data__objective": "classification"},
            "tasks.pairs.data.objective='classification': the head 'pair_classification' reads the "
            "examples of 'pair_classification' alone",
        ),
        ({"tasks__pairs__batches": 0}, "tasks.pairs.batches=0 must be 1 or more, or 'auto'"),
        ({"tasks__pairs__share": 2.0}, "tasks.pairs has both share and batches"),
        (
            {"tasks__pairs__data__task": "pair"},
            "task 'pair' (data.task, evaluate.tasks) is not registered. Did you mean",
        ),
        ({"tasks__pairs__data__settings__text_b": ""}, None),
        ({"initialize": ""}, "initialize is not set"),
        (
            {"model__answer_steps": None},
            "model.answer_steps is not set, and the folder in initialize has a 'bert'",
        ),
    ],
)
def test_bad_input_is_one_line_before_work(folder, tmp_path, capsys, changes, message):
    if message is None:
        lines = (folder / "pairs-train.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        path = tmp_path / "single.jsonl"
        single = [{"text_a": row["text_a"], "label": row["label"]} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in single))
        files = {f"tasks__pairs__data__settings__{n}": str(path) for n in ("train", "validation")}
        changes = changes | files
        message = "the task's rows lack text_b"
    made = settings(folder)
    if changes == {"tasks": {}}:
        made.tasks = {}
    else:
        made = bad(folder, **changes)
    made.workdir = str(tmp_path / "run")
    with pytest.raises(SystemExit) as caught:
        train.main(parse(made))
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([0, 1, 1], r"rows.jsonl:2: answer=\[0, 1, 1\] has 2 relevant choices, and must have one"),
        ([0, 0, 0], r"answer=\[0, 0, 0\] has 0 relevant choices"),
        ([1, 0], r"answer=\[1, 0\] must have a 0 or 1 for each of the 3 choices"),
    ],
)
def test_a_ranking_has_exactly_one_relevant_choice(tmp_path, answer, message):
    rows = [
        {"text_a": "a", "choices": ["x", "y", "z"], "answer": one} for one in ([0, 1, 0], answer)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=message):
        labelled_text.read(str(path), kind="multiple_choice", names=FIELDS["answers"])
    path.write_text(json.dumps(rows[0]) + "\n")
    [row] = labelled_text.read(str(path), kind="multiple_choice", names=FIELDS["answers"])
    assert row["answer"] == 1


@pytest.mark.slow
def test_a_prediction_needs_both_texts(run, tmp_path, monkeypatch, capsys):
    source, output = tmp_path / "new.jsonl", tmp_path / "predictions.jsonl"
    source.write_text('{"text_a": "dog"}\n')
    command_flags.give(monkeypatch, task="pairs", input=str(source), output=str(output))
    with pytest.raises(SystemExit):
        infer.main(parse(config_file("run")(str(run))))
    assert "a row has no 'text_b', the column of data.settings.text_b" in capsys.readouterr().err


@pytest.mark.slow
def test_both_tasks_are_learned_and_measured_by_themselves(folder, tmp_path, monkeypatch):
    for name, make in (("pairs", pairs), ("answers", multiple_choice)):
        write(tmp_path / f"{name}-train.jsonl", make, rows=1500, seed=0)
        write(tmp_path / f"{name}-validation.jsonl", make, rows=200, seed=1)
    made = settings(tmp_path, steps=450)
    made.tasks.answers.loss = {"gamma": 10.0}  # with 1 the gradients of a ranking are small
    made.initialize = str(folder / "bert")
    made.train.log_every = made.checkpoint.every = 150
    train.main(parse(made))
    command_flags.give(monkeypatch)
    evaluate.main(parse(config_file("run")(made.workdir)))
    measured = json.loads((tmp_path / "run" / "evaluation.json").read_text())["tasks"]
    assert list(measured) == ["answers/answers", "pairs/pairs"]
    assert measured["pairs/pairs"]["accuracy"] > 0.9  # a constant has 0.5
    assert measured["answers/answers"]["accuracy"] > 0.8  # chance is at most 0.5
