"""Inference where TensorFlow and seqio cannot be imported: a run, and a Hugging Face folder."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from t5x_like import config
from t5x_like.pretrained import from_pretrained
from tests.programs import tiny_encoder, tiny_writer

ROOT = pathlib.Path(__file__).parents[1]
PROGRAM = """
import runpy, sys

ABSENT = ("tensorflow", "tensorflow_text", "tensorflow_datasets", "seqio", "clu.metric_writers")

class WithoutThem:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, *arguments):
        absent = any(name == one or name.startswith(one + ".") for one in ABSENT)
        return None if absent else self.finder.find_spec(name, *arguments)

sys.meta_path[:] = map(WithoutThem, sys.meta_path)
runpy.run_module("t5x_like.infer", run_name="__main__", alter_sys=True)
"""


def a_run(folder):
    """A run of GPT-2 on bytes."""
    made = tiny_writer.settings("gpt2")
    made.workdir = str(tiny_writer.write(folder / "run", made))
    (folder / "run" / "config.json").write_text(json.dumps(config.to_dict(made)))
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
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *make(tmp_path), *files],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    [answer] = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert answer["inputs"] == "the cat"
    assert isinstance(answer["prediction"], str)
