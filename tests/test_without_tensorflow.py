"""Training, evaluation and inference where TensorFlow and seqio cannot be imported."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from t5x_like import config
from t5x_like.config import parse
from t5x_like.experiment import reporting
from t5x_like.pretrained import from_pretrained
from tests.programs import tiny_encoder, tiny_writer

ROOT = pathlib.Path(__file__).parents[1]


def run(command, *arguments, **variables):
    """What a command prints where TensorFlow and seqio cannot be imported, and its status."""
    return subprocess.run(
        [sys.executable, "-m", "tests.programs.without_tensorflow", command, *arguments],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"} | variables,
        capture_output=True,
        text=True,
    )


def a_run(folder):
    """A run of GPT-2 on bytes."""
    made = tiny_writer.settings("gpt2")
    made.workdir = str(tiny_writer.write(folder / "run", made))
    (folder / "run" / "config.json").write_text(json.dumps(config.to_dict(parse(made))))
    return [f"--config=configs/run.py:{made.workdir}"]


def a_hugging_face_folder(folder):
    """A folder of GPT-2 with a tokenizer."""
    run = tiny_encoder.write(folder / "run", "gpt2", words=["the", "cat", "sat"])
    from_pretrained(run).save_pretrained(folder / "exported")
    shutil.copy(run / "vocab.txt", folder / "exported")
    return [
        "--config=configs/pretrained.py",
        f"--config.initialize={folder / 'exported'}",
        "--config.decode.max_new_tokens=4",
    ]


@pytest.mark.parametrize("make", [a_run, a_hugging_face_folder])
def test_infer_needs_no_tensorflow(make, tmp_path):
    (tmp_path / "prompts.txt").write_text("the cat\n")
    files = [f"--input={tmp_path / 'prompts.txt'}", f"--output={tmp_path / 'out.jsonl'}"]
    done = run("infer", *make(tmp_path), *files)
    assert done.returncode == 0, done.stderr
    [answer] = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert answer["inputs"] == "the cat"
    assert isinstance(answer["prediction"], str)


def a_config(folder, name):
    """The flags of a run of a tiny T5 on documents as JSON Lines."""
    words = ("one", "two", "three", "four", "five", "six", "seven")
    texts = [f"{n} {' '.join(words[(n * i) % 7] for i in range(12))}" for n in range(300)]
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return [
        f"--config=tests/programs/tiny_t5.py:{folder / name}",
        "--config.data.module=data/grain_files.py",
        "--config.data.task=grain_files",
        f"--config.data.settings.files={corpus}",
        "--config.train.steps=8",
        "--config.checkpoint.every=3",
    ]


def losses(folder):
    """The loss of each step, those after the last start for steps that were taken twice."""
    return reporting.read_log(folder / "run")["train/loss"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with a run that was trained without a break, and its flags."""
    folder = tmp_path_factory.mktemp("runs")
    flags = a_config(folder, "whole")
    done = run("train", *flags)
    assert done.returncode == 0, done.stderr
    assert "held-out loss" in done.stdout
    return folder, flags


@pytest.mark.slow
def test_a_killed_run_is_resumed_bitwise(whole):
    folder, _ = whole
    flags = a_config(folder, "killed")
    saved = str(folder / "killed" / "run" / "checkpoints" / "3")
    assert run("train", *flags, KILLED_AT="5", KILLED_AFTER=saved).returncode == -9
    done = run("train", *flags)
    assert "going on from step 3" in done.stdout, done.stderr
    assert losses(folder / "killed") == losses(folder / "whole")
    assert len(losses(folder / "whole")) == 8
    found = [from_pretrained(folder / name / "run").params for name in ("whole", "killed")]
    jax.tree.map(np.testing.assert_array_equal, *found)


@pytest.mark.slow
def test_a_run_is_evaluated_and_used(whole):
    folder, flags = whole
    done = run("evaluate", *flags)
    assert done.returncode == 0, done.stderr
    numbers = json.loads((folder / "whole" / "run" / "evaluation.json").read_text())
    assert np.isfinite(numbers["tasks"]["grain_files"]["loss"])
    (folder / "prompts.txt").write_text("one two\n")
    files = [f"--input={folder / 'prompts.txt'}", f"--output={folder / 'answers.jsonl'}"]
    done = run("infer", *flags, *files)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "answers.jsonl").read_text())["inputs"] == "one two"


@pytest.mark.slow
def test_a_data_module_of_seqio_is_refused_with_the_way_to_install_it(tmp_path):
    done = run("train", f"--config=tests/programs/tiny_t5.py:{tmp_path}")
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "data/text_files.py' needs seqio, which is not installed" in line
    assert "pip install 't5x_like[seqio]'" in line
    assert "set data.driver='grain'" in line


READ = """
import json, sys
from tests.programs.without_tensorflow import WithoutThem
sys.meta_path[:] = map(WithoutThem, sys.meta_path)
from t5x_like.config.run_settings import DataSettings
from t5x_like.experiment import data_setup
for module, objective, settings in json.loads(sys.argv[1]):
    data = DataSettings(module=f"data/{module}.py", driver="grain", vocabulary=sys.argv[2],
                        objective=objective, settings=settings)
    tasks = data_setup.build(data).tasks()
    print(len([*tasks.rows(module, split="train")]), *data_setup.label_names(data))
"""


def test_labelled_text_and_pairs_need_no_tensorflow(tmp_path):
    lines = {
        "labelled": [{"text_a": f"it was {n}", "label": "yn"[n % 2]} for n in range(9)],
        "pairs": [{"inputs": f"it was {n}", "targets": "so"} for n in range(9)],
        "ranked": [{"prompt": "it", "chosen": "so", "rejected": "no"}] * 9,
    }
    files = {name: str(tmp_path / f"{name}.jsonl") for name in lines}
    for name, rows in lines.items():
        pathlib.Path(files[name]).write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"inputs": "inputs", "targets": "targets"}
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nit\n")
    cases = [
        ("labelled_files", "classification", {"train": files["labelled"], "held_out": 0.2}),
        ("text_files", "text_to_text", {"files": files["pairs"], "held_out": 0.0, **columns}),
        (
            *("parallel_text", "translation"),
            {"pairs": files["pairs"], "columns": [*columns], "held_out": 0.0},
        ),
        ("prompted_files", "text_to_text", {"train": files["pairs"]}),
        ("preference_files", "comparisons", {"train": files["ranked"], "held_out": 0.0}),
        ("prompt_files", "prompts", {"prompts": files["ranked"], "held_out": 0.0}),
    ]
    done = subprocess.run(
        [sys.executable, "-c", READ, json.dumps(cases), str(tmp_path / "vocab.txt")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    labelled, *others = done.stdout.splitlines()
    assert labelled.split()[1:] == ["n", "y"]
    assert others == ["9"] * 5
