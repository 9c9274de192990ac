"""The commands, from a text file to generated text, and their errors."""

import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
from unittest import mock

import jax
import numpy as np
import pytest

import t5x_like
from t5x_like import checkpoints, evaluate, infer, train
from t5x_like.config import parse
from t5x_like.experiment import data_side, model_side, reporting
from t5x_like.experiment.run import of_config
from t5x_like.vocabularies import trainers
from tests.programs import command_flags, processes, tiny_t5

ROOT = pathlib.Path(__file__).parents[1]


def settings(folder, **changes):
    """The tiny config with e.g. `train__steps=6`."""
    tiny = tiny_t5.get_config(str(folder))
    tiny.update_from_flattened_dict({key.replace("__", "."): v for key, v in changes.items()})
    return tiny


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder in which four steps were trained."""
    folder = tmp_path_factory.mktemp("trained")
    train.main(parse(settings(folder)))
    return folder


@pytest.fixture
def given(monkeypatch):
    """Sets the flags that a command has besides its config."""
    return functools.partial(command_flags.give, monkeypatch)


def command(name, folder, *arguments, **environment):
    """A command in a process of its own, which has one device and compiles as quickly."""
    flags = os.environ["XLA_FLAGS"].replace("--xla_force_host_platform_device_count=8", "")
    return subprocess.Popen(
        [
            *(sys.executable, "-m", f"t5x_like.{name}"),
            f"--config=tests/programs/tiny_t5.py:{folder}",
            *arguments,
        ],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_run_leaves_its_traces(trained, capsys):
    run = trained / "run"
    assert {path.name for path in run.iterdir()} == {
        "checkpoints",
        "config.json",
        "configs",
        "loss.png",
        "metrics.jsonl",
        "tensorboard",
    }
    log = reporting.read_log(run)
    assert sorted(log["train/loss"]) == [1, 2, 3, 4]
    assert sorted(log["text_files/cross_entropy"]) == [4]
    for name in ("perplexity", "accuracy", "z_loss", "grad_norm", "param_norm", "learning_rate"):
        assert f"train/{name}" in log
    assert "train/tokens_per_second" in log
    assert checkpoints.checkpoint_steps(run / "checkpoints") == [2, 4]


@pytest.mark.slow
def test_the_same_command_goes_on_and_ends_where_one_run_would(trained, tmp_path, capsys):
    whole = settings(tmp_path, train__steps=6, checkpoint__every=6, evaluate__every=6)
    train.main(parse(whole))
    shutil.copytree(trained / "run", tmp_path / "half")
    capsys.readouterr()
    train.main(parse(settings(tmp_path, train__steps=6, workdir=str(tmp_path / "half"))))
    assert "going on from step 4" in capsys.readouterr().out
    parameters = [
        checkpoints.restore_params(tmp_path / name / "checkpoints")[0] for name in ("run", "half")
    ]
    jax.tree.map(np.testing.assert_array_equal, *parameters)


@pytest.mark.parametrize("steps", [3, 4, 5])
def test_fewer_steps_than_the_run_has_taken_are_none(steps, tmp_path, capsys):
    state = mock.Mock(step=4)
    saver = mock.Mock(folder=tmp_path)
    saver.restore_latest.return_value = state, {}
    model = mock.Mock(run=of_config(settings(tmp_path, train__steps=steps)))
    assert train._restore(model, None, saver) == (state, {})
    line = f"train.steps={steps}, and the run has taken 4: no step is left"
    assert (line in capsys.readouterr().out) == (steps <= 4)


def test_evaluate_writes_what_it_measures(trained, given, capsys):
    given()
    evaluate.main(parse(settings(trained, evaluate__batches=0)))
    written = json.loads((trained / "run" / "evaluation.json").read_text())
    assert written["step"] == 4
    measured = written["tasks"]["text_files"]
    assert measured["cross_entropy"] > 0
    assert 0 < measured["unigram_entropy"] < np.log(384)
    assert "cross_entropy" in capsys.readouterr().out


def test_infer_answers_each_line(trained, given, tmp_path):
    questions, answers = tmp_path / "questions.txt", tmp_path / "answers.jsonl"
    questions.write_text("".join(f"one two {i}\n" for i in range(10)))  # more than a batch
    given(input=str(questions), output=str(answers))
    infer.main(parse(settings(trained)))
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [row["inputs"] for row in rows] == questions.read_text().splitlines()
    assert all(isinstance(row["prediction"], str) for row in rows)


@pytest.mark.parametrize("name", ["evaluate", "infer"])
def test_a_full_disk_is_one_line(name, trained, given, tmp_path, capsys):
    (tmp_path / "questions.txt").write_text("one two\n")
    given(output="/dev/full", input=str(tmp_path / "questions.txt") if name == "infer" else "")
    with pytest.raises(SystemExit) as ended:
        {"evaluate": evaluate.main, "infer": infer.main}[name](parse(settings(trained)))
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: cannot write /dev/full: No space left on device: make room")


@pytest.mark.parametrize("name", ["evaluate", "infer"])
def test_another_vocabulary_than_the_runs_is_refused(name, trained, given, tmp_path, capsys):
    vocabulary = tmp_path / "other.model"
    lines = (trained / "text.txt").read_text().splitlines()
    trainers.train(lines, vocab_size=40, output=vocabulary)
    given(examples=0 if name == "evaluate" else 1)
    changed = settings(trained, data__vocabulary=str(vocabulary))
    with pytest.raises(SystemExit) as ended:
        {"evaluate": evaluate.main, "infer": infer.main}[name](parse(changed))
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "other.model' is another vocabulary than the one in the run's checkpoint" in line


def test_infer_shows_examples(trained, given, capsys):
    given(examples=2)
    infer.main(parse(settings(trained)))
    shown = capsys.readouterr().out
    # Bytes have no text for a sentinel.
    assert shown.count("model: ") == shown.count("original: ") == 2


def test_a_run_is_a_pretrained_model(trained):
    model = t5x_like.from_pretrained(trained / "run")
    tokens = np.array([[5, 6, 1]])
    assert model(input_ids=tokens, decoder_input_ids=np.array([[0]])).logits.shape == (1, 1, 384)


def test_unigram_entropy_of_four_equal_tokens_is_log_four():
    assert data_side.unigram_entropy(np.array([0, 3, 3, 3, 3])) == pytest.approx(np.log(4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"system": "t6"}, "system='t6' does not exist. Did you mean 't5'"),
        ({"data__task": "text_file"}, "Did you mean 'text_files'"),
        ({"data__objective": "span_corupton"}, "Did you mean 'span_corruption'"),
        ({"data__converter": "encoder_decode"}, "Did you mean 'encoder_decoder'"),
        ({"data__module": "data/text_file.py"}, "Did you mean 'data/text_files.py'"),
        ({"data__vocabulary": "no.model"}, "'no.model' does not exist"),
        ({"data__lengths__targets": 4}, "targets"),
        ({"model__vocab_size": 300}, "model.vocab_size=300 has no room"),
        ({"model__remat": "ful"}, "Did you mean 'full'"),
        ({"mesh__model": 3}, "asks for a multiple of 3 devices"),
        ({"mesh__model": 4, "mesh__data": 2}, "mesh.model=4 does not divide kv_heads=2"),
        ({"optimizer__name": "adafacto"}, "Did you mean 'adafactor'"),
        ({"data__shards": 3}, "data.shards=3"),
        ({"workdir": ""}, "workdir is not set"),
        (
            {"workdir": "s3://bucket/run"},
            "'s3://bucket/run' must be a path of this machine",
        ),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_compiled(
    changes, message, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(model_side.TaskProgram, "initial_state", None)
    with pytest.raises(SystemExit) as ended:
        train.main(parse(settings(tmp_path, **changes)))
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error


def test_a_checkpoint_that_is_not_there_is_one_line(trained, given, capsys):
    given(checkpoint=str(trained / "run" / "checkpoint"))
    with pytest.raises(SystemExit):
        evaluate.main(parse(settings(trained)))
    assert "checkpoints" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.train.steps=many"], "train.steps='many' must be a whole number"),
        (["--config=configs/t5.py:tiny"], "configs/t5.py has no size 'tiny': choose demo, "),
    ],
)
def test_a_flag_that_is_wrong_ends_the_command_with_one_line(arguments, message, tmp_path):
    run = command("train", tmp_path, *arguments)
    _, error = run.communicate(timeout=120)
    assert run.returncode == 2
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_two_processes_are_one(trained, tmp_path):
    workdir = f"--config.workdir={tmp_path}/apart"
    apart = [command("train", tmp_path, workdir, **one) for one in processes.environments()]
    errors = [process.communicate(timeout=240)[1] for process in apart]
    assert [process.returncode for process in apart] == [0, 0], errors
    logs = [reporting.read_log(run) for run in (tmp_path / "apart", trained / "run")]
    losses = [list(log["train/loss"].values()) for log in logs]
    assert len(losses[0]) == 4
    # One device of each of two processes, or eight of one: float32 sums in another order.
    np.testing.assert_allclose(*losses, rtol=1e-5)
    np.testing.assert_allclose(*(log["text_files/loss"][4] for log in logs), rtol=1e-5)


@pytest.mark.slow
def test_a_killed_run_ends_as_if_nothing_had_happened(tmp_path):
    for name, stops in (("straight", []), ("killed", [10])):
        for steps in [*stops, 20]:
            run = command(
                "train",
                tmp_path,
                f"--config.workdir={tmp_path}/{name}",
                "--config.train.steps=20",
                "--config.checkpoint.every=5",
            )
            if steps != 20:
                for line in run.stdout:
                    if line.startswith(f"step {steps + 2}/"):
                        run.kill()
                        break
            run.communicate(timeout=900)
    parameters = [
        checkpoints.restore_params(tmp_path / name / "checkpoints")[0]
        for name in ("straight", "killed")
    ]
    jax.tree.map(np.testing.assert_array_equal, *parameters)
