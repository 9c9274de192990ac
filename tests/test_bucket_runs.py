"""A run whose workdir, vocabulary and documents are in a bucket: trained, killed, resumed, used."""

import io
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
import sentencepiece

from t5x_like import checkpoints, paths
from t5x_like.experiment import reporting
from tests.programs import processes, storage_emulator

ROOT = pathlib.Path(__file__).parents[1]
BUCKET = "gs://bucket"
WORDS = ("one", "two", "three", "four", "five", "six", "seven")

pytestmark = [pytest.mark.slow, *storage_emulator.QUIET]


def train_pieces(texts):
    """A SentencePiece model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=48,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def folder(emulator, tmp_path_factory):
    """A folder with a vocabulary and documents, which are in the bucket too."""
    folder = tmp_path_factory.mktemp("inputs")
    texts = [f"{n} {' '.join(WORDS[(n * i) % 7] for i in range(12))}" for n in range(300)]
    corpus = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    for place in (folder, paths.path(BUCKET)):
        (place / "corpus.jsonl").write_bytes(corpus)
        (place / "pieces.model").write_bytes(train_pieces(texts))
    return folder


def flags(inputs, *, workdir, folder):
    """The flags of a run of a tiny T5."""
    return [
        f"--config=tests/programs/tiny_t5.py:{folder}",
        f"--config.workdir={workdir}",
        f"--config.data.vocabulary={inputs}/pieces.model",
        "--config.data.module=data/grain_files.py",
        "--config.data.task=grain_files",
        f"--config.data.settings.files={inputs}/*.jsonl",
        "--config.train.steps=8",
        "--config.checkpoint.every=3",
    ]


def start(command, *arguments, cache, **variables):
    """A process of a command where TensorFlow cannot be imported."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.programs.without_tensorflow", command, *arguments],
        cwd=ROOT,
        env=os.environ
        | {"XLA_FLAGS": "--xla_backend_optimization_level=0", "T5X_LIKE_CACHE": str(cache)}
        | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    """What a process printed, and its status, once it has ended."""
    stdout, stderr = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def run(command, *arguments, **how):
    """What a command prints, and its status."""
    return ended(start(command, *arguments, **how))


def run_on_two(command, *arguments, **how):
    """The same of the two processes of one run; if the first fails, the second is killed."""
    environments = processes.environments()
    first, second = (start(command, *arguments, **how, **one) for one in environments)
    done = ended(first)
    if done.returncode:
        second.kill()
    return done, ended(second)


def test_a_run_in_a_bucket_is_killed_resumed_evaluated_and_used(emulator, folder, tmp_path):
    local = flags(folder, workdir=tmp_path / "run", folder=folder)
    done = run("train", *local, cache=tmp_path)
    assert done.returncode == 0, done.stderr

    workdir = paths.path(f"{BUCKET}/runs/t5")
    remote = flags(BUCKET, workdir=workdir, folder=folder)
    saved = f"{workdir}/checkpoints/3/{checkpoints.reading.COMMITTED}"
    killed = run("train", *remote, cache=tmp_path, KILLED_AT="5", KILLED_AFTER=saved)
    assert killed.returncode == -9, killed.stderr
    assert (workdir / "lock.json").exists()
    assert max(reporting.read_log(workdir)["train/loss"]) >= 2  # uploaded with the checkpoint

    done = run("train", *remote, cache=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "going on from step 3" in done.stdout
    assert "took over the lock" in done.stdout
    assert not (workdir / "lock.json").exists()
    expected, found = (reporting.read_log(where) for where in (tmp_path / "run", workdir))
    assert found["train/loss"] == expected["train/loss"]
    assert len(found["train/loss"]) == 8
    assert found["grain_files/loss"] == expected["grain_files/loss"]
    both = [checkpoints.restore_params(where)[0] for where in (tmp_path / "run", workdir)]
    jax.tree.map(np.testing.assert_array_equal, *both)
    assert {path.name for path in workdir.iterdir()} == {
        path.name for path in (tmp_path / "run").iterdir()
    }

    done = run("evaluate", f"--config=configs/run.py:{workdir}", cache=tmp_path)
    assert done.returncode == 0, done.stderr
    numbers = json.loads((workdir / "evaluation.json").read_text())
    assert np.isfinite(numbers["tasks"]["grain_files"]["loss"])
    (tmp_path / "prompts.txt").write_text("one two\n")
    files = [f"--input={tmp_path / 'prompts.txt'}", f"--output={tmp_path / 'answers.jsonl'}"]
    done = run("infer", f"--config=configs/run.py:{workdir}", *files, cache=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "answers.jsonl").read_text())["inputs"] == "one two"


def test_two_processes_share_a_run_in_a_bucket_and_go_on_after_a_kill(emulator, folder, tmp_path):
    workdir = paths.path(f"{BUCKET}/runs/two")
    changes = "--config.mesh.fsdp=2", "--config.mesh.data=1"
    remote = flags(BUCKET, workdir=workdir, folder=folder)
    saved = f"{workdir}/checkpoints/3/{checkpoints.reading.COMMITTED}"
    killed, _ = run_on_two(
        "train", *remote, *changes, cache=tmp_path, KILLED_AT="5", KILLED_AFTER=saved
    )
    assert killed.returncode == -9, killed.stderr
    assert checkpoints.checkpoint_steps(workdir / "checkpoints") == [3]
    done = run_on_two("train", *remote, *changes, cache=tmp_path)
    assert [one.returncode for one in done] == [0, 0], done
    assert "going on from step 3" in done[0].stdout
    alone = flags(folder, workdir=tmp_path / "alone", folder=folder)
    assert run("train", *alone, cache=tmp_path).returncode == 0
    found, expected = (
        reporting.read_log(where)["train/loss"] for where in (workdir, tmp_path / "alone")
    )
    assert sorted(found) == list(range(1, 9))
    # Float32 sums in another order, through eight updates.
    np.testing.assert_allclose([*found.values()], [*expected.values()], rtol=1e-4)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("--config.workdir=gs://absent/run", "there is no bucket 'absent'"),
        ("--config.workdir=gs://sealed/run", "may not do this in the bucket"),
        (
            "--config.data.vocabulary=gs://bucket/peices.model",
            "Did you mean 'gs://bucket/pieces.model'?",
        ),
        ("--config.data.settings.files=gs://bucket/*.json", "matches no file"),
    ],
)
def test_a_bucket_that_cannot_be_used_is_one_line(emulator, folder, tmp_path, changed, message):
    flags_of_run = flags(BUCKET, workdir=f"{BUCKET}/runs/refused", folder=folder)
    done = run("train", *flags_of_run, changed, cache=tmp_path)
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.splitlines()
    assert message in line
