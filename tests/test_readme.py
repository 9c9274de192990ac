"""The light commands of the README run as they are written, in a folder with what they name.

Only sizes differ: fewer steps, smaller batches, a smaller vocabulary. The models of the hub are
tiny, and are read offline from its cache.
"""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hf.test_hub import cached
from tests.programs import written_models
from tests.test_docs import commands

ROOT = Path(__file__).parents[1]
MODELS = {"bert-base-uncased": "bert", "gpt2": "gpt2", "google/t5-v1_1-small": "t5"}
# What is added to a command, in the README's order: the command, a word of it, more words.
SMALLER = [
    ("vocabulary", "corpus/*.jsonl.gz", ["--size=300"]),
    ("train", "runs/small", ["--config.train.steps=2", "--config.data.batch_size=2"]),
    ("train", "runs/reviews", ["--config.train.steps=2", "--config.data.lengths.inputs=8"]),
    ("evaluate", "runs/small", ["--config.evaluate.batches=1"]),
    ("infer", "--interactive", ["--config.decode.max_new_tokens=2"]),
    ("infer", "in.txt", ["--config.decode.max_new_tokens=2"]),
    ("inspect", "layers.png", []),
    ("convert", "t5x_like", []),
    ("convert", "stablehlo", []),
    ("scaling", "plan", []),
    ("study", "--plan", ["--arms=baseline"]),
]
# A server, the compiler of a TPU for minutes, fits of half a minute (tests/test_docs.py), a pod.
NOT_LIGHT = [("page", "gpt2"), ("plan", "v4:8x8x8"), ("scaling", "fit"), ("train", "gs://BUCKET")]


def is_same(found, command, word):
    name, words = found
    return name == command and any(word in one for one in words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder like a clone, with the files that a user of the README has."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("configs", "data", "docs", "launch", "t5x_like"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "corpus").mkdir()
    texts = [f"the cat {n} sat on the mat, and a dog {n * n} saw it." for n in range(400)]
    with gzip.open(folder / "corpus/a.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    rows = [{"text_a": f"the cat sat {n}", "label": ("good", "bad")[n % 2]} for n in range(60)]
    (folder / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "texts.txt").write_text("the cat sat\n")
    (folder / "in.txt").write_text("the <extra_id_0> sat\n")
    for name, system in MODELS.items():
        made = written_models.write(system, tmp_path_factory.mktemp(system))
        cached(folder / "hf" / "hub", name, made, commit="1" * 40, refs=["main"])
    return folder


def test_every_command_of_the_readme_is_run_or_is_known_to_be_heavy():
    for found in commands("README.md"):
        known = [*((command, word) for command, word, _ in SMALLER), *NOT_LIGHT]
        assert sum(is_same(found, *one) for one in known) == 1, found


@pytest.mark.slow
def test_the_light_commands_run_in_their_order(folder):
    environment = {**os.environ, "HF_HOME": str(folder / "hf"), "PYTHONPATH": str(folder)}
    del environment["XLA_FLAGS"]  # of the tests: 8 devices
    for name, words in commands("README.md"):
        more = [more for *one, more in SMALLER if is_same((name, words), *one)]
        if more:
            done = subprocess.run(
                [sys.executable, "-m", f"t5x_like.{name}", *words, *more[0]],
                cwd=folder,
                env=environment,
                input="the cat\n",
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, (name, words, done.stderr)
            assert done.stdout, (name, words)
    assert (folder / "runs/small/evaluation.json").is_file()
    assert (folder / "exported").is_dir()


def test_the_pod_of_the_readme_is_asked_for_in_a_dry_run():
    [line] = [
        line
        for line in (ROOT / "README.md").read_text("utf-8").replace("\\\n", " ").split("\n")
        if line.startswith("launch/tpu_vm.sh")
    ]
    environment = {key: v for key, v in os.environ.items() if not key.startswith("CLOUDSDK")}
    done = subprocess.run(
        line.replace(" -- ", " --dry-run -- ").split(),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "queued-resources create t5" in done.stdout
