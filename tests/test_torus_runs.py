"""A run of four processes, whose devices lie as on a v5e-16 or on two v5e-8, is the run of one.

A v5e:2x4 has two hosts of four chips by libtpu's description; Cloud TPU has it on a single host.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from t5x_like import checkpoints
from t5x_like.experiment import reporting
from tests.programs import processes
from tests.programs.tiny_t5 import WORDS

ROOT = pathlib.Path(__file__).parents[1]
STEPS, ROWS = 4, 16
SIZES = {"vocab_size": 384, "positions": 64, "layers": 1, "d_model": 32, "d_ff": 48, "heads": 4}
NUMBERS = ("train/loss", "train/grad_norm", "grain_files/loss", "grain_files/accuracy")
ONE_SLICE, TWO_SLICES = ("v5e:4x4", 1), ("v5e:2x4", 2)
LAYOUTS = {
    "data": (ONE_SLICE, {"data": -1}),
    "fsdp": (ONE_SLICE, {"data": 1, "fsdp": -1}),
    "model": (ONE_SLICE, {"data": 2, "fsdp": 2, "model": 4}),  # two hosts with the same rows
    "slices": (TWO_SLICES, {"data": -1, "fsdp": 2, "model": 2}),
}


def write_texts(path):
    lines = [{"text": f"{n} {' '.join(WORDS[(n + i) % 10] for i in range(9))}"} for n in range(300)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def arguments(folder, workdir, *changes):
    return [
        "--config=configs/gpt2.py:small",
        f"--config.workdir={workdir}",
        *(f"--config.model.{name}={size}" for name, size in SIZES.items()),
        "--config.data.module=data/grain_files.py",
        "--config.data.task=grain_files",
        f"--config.data.settings.files={folder}/texts.jsonl",
        "--config.data.settings.held_out=0.1",
        "--config.data.vocabulary=bytes",
        "--config.data.lengths={'targets': 64}",
        f"--config.data.batch_size={ROWS}",
        # Most of the shards have two held-out documents, and the others one.
        "--config.data.shards=16",
        "--config.optimizer.learning_rate=0.01",
        "--config.optimizer.warmup_steps=2",
        "--config.optimizer.decay_steps=100",
        f"--config.train.steps={STEPS}",
        "--config.train.log_every=1",
        "--config.checkpoint.every=2",
        "--config.evaluate.batches=0",
        "--config.evaluate.measures={'last_word': {}}",
        *changes,
    ]


def commands(folder, workdir, *changes):
    """A run that evaluates and resumes, and an evaluation of it that writes what it predicts."""
    train = ["t5x_like.train", *arguments(folder, workdir, *changes)]
    predictions = f"--config.evaluate.predictions={workdir}/predictions.jsonl"
    return [
        [*train, f"--config.train.steps={STEPS - 2}"],
        train,
        ["t5x_like.evaluate", *arguments(folder, workdir, *changes), predictions],
    ]


def start(folder, made, number, *, devices, slices=ONE_SLICE):
    """The commands on so many processes."""
    topology, number_of_slices = slices
    folder.mkdir()
    (folder / "commands.json").write_text(json.dumps(made))
    words = [topology, str(number_of_slices), str(folder)]
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", f"device_count={devices}")
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.programs.torus", *words],
            cwd=ROOT,
            env=os.environ | {"XLA_FLAGS": flags} | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for own in (processes.environments(number) if number > 1 else [{}])
    ]


def run(*given, **how):
    runs = start(*given, **how)
    try:
        outputs = [process.communicate(timeout=800) for process in runs]
    finally:
        for process in runs:
            process.kill()
    assert [process.returncode for process in runs] == [0] * len(runs), outputs


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of one process with one device, as the other runs have theirs."""
    folder = tmp_path_factory.mktemp("alone")
    write_texts(folder / "texts.jsonl")
    run(folder / "one", commands(folder, folder / "run"), 1, devices=1)
    return folder


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_same_run(found, expected):
    """Losses, evaluations, predictions in their order and checkpoints of two workdirs are equal."""
    logs = [reporting.read_log(workdir) for workdir in (found, expected)]
    for name in NUMBERS:
        assert list(logs[0][name]) == list(logs[1][name]), name
        # Float32 sums in another order, through a few updates.
        values = [list(log[name].values()) for log in logs]
        np.testing.assert_allclose(*values, rtol=1e-4, err_msg=name)
    assert len(logs[1]["train/loss"]) == STEPS
    written, read = (read_lines(workdir / "predictions.jsonl") for workdir in (found, expected))
    assert len(written) == len(read) > ROWS
    for one, other in zip(written, read, strict=True):
        assert one["text"] == other["text"]
        np.testing.assert_allclose(one["log_prob"], other["log_prob"], rtol=1e-3)
    params = [checkpoints.restore_params(workdir)[0] for workdir in (found, expected)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *params)


@pytest.fixture(scope="module", params=LAYOUTS.values(), ids=LAYOUTS)
def four(request, alone, tmp_path_factory):
    """The workdir of four processes with four devices each."""
    folder = tmp_path_factory.mktemp("four")
    slices, sizes = request.param
    mesh = [f"--config.mesh.{axis}={size}" for axis, size in sizes.items()]
    made = commands(alone, folder / "run", *mesh)
    run(folder / "four", made, 4, devices=4, slices=slices)
    return folder / "run"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_four_processes_on_a_torus_are_one(alone, four):
    assert_same_run(four, alone / "run")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_process_goes_on_from_what_four_have_written_as_from_its_own(alone, four, tmp_path):
    workdirs = [shutil.copytree(four, tmp_path / "four"), tmp_path / "alone"]
    shutil.copytree(alone / "run", workdirs[1])
    more = f"--config.train.steps={STEPS + 2}"
    made = [["t5x_like.train", *arguments(alone, workdir, more)] for workdir in workdirs]
    run(tmp_path / "one", made, 1, devices=1)
    losses = [reporting.read_log(workdir)["train/loss"] for workdir in workdirs]
    assert list(losses[0]) == list(losses[1]) == list(range(1, STEPS + 3))
    np.testing.assert_allclose(*(list(one.values()) for one in losses), rtol=1e-4)
