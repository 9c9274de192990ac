"""The benchmark for a GPU, on tiny shapes: its figures, and the batch that fits."""

import dataclasses
import json
import math
import pathlib
import re
import types

import pytest

from benchmarks import attention_gradients, gpu_training
from t5x_like.nn.attention.cores import dense_core
from t5x_like.research.planning import gpus


@pytest.mark.parametrize("workload", ["llama_1b", pytest.param("t5_large", marks=pytest.mark.slow)])
def test_a_workload_is_measured(tmp_path, workload):
    file = tmp_path / "figures.json"
    sides = ["--sides", "ours", "--workloads", workload]
    (found,) = gpu_training.main(
        [*sides, "--tiny", "--rows", "2", "--steps", "1", "--alone", str(file)]
    )
    assert gpu_training.Figures(**json.loads(file.read_text())) == found
    assert found.rows == 2
    assert found.seconds > 0
    # Random tokens of 512: nothing is better than even odds.
    assert found.loss == pytest.approx(math.log(512), rel=0.2)
    assert "2 rows, utilization unknown" in found.text


def figures(rows):
    return gpu_training.Figures("ours", "t5", "H100", rows, 0.5, 1, None, None, 6.0)


def test_the_largest_batch_that_fits_is_found_by_bisection():
    tried = []

    def measure(rows):
        tried.append(rows)
        return figures(rows) if rows <= 40 else None

    found = gpu_training.largest(gpu_training.ROWS, measure)
    assert found.rows == 40
    assert len(tried) <= 5  # each is compiled
    assert gpu_training.largest([64, 48], measure) is None
    assert gpu_training.largest([2, 1], measure).rows == 2


def test_rows_that_do_not_fit_are_told_from_failures(monkeypatch, tmp_path):
    def side(config, model, batch, steps):
        if config.data.batch_size > 1:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return 0.5, 6.0, 10**9, "NVIDIA H100 80GB HBM3"

    monkeypatch.setitem(gpu_training.SIDES, "ours", side)
    found = gpu_training.measure("ours", "llama_1b", rows=1, steps=1, tiny=True)
    used = found.flops / 0.5 / 989.5e12
    assert f"2.0 sequences/s with 1 rows, utilization {used:.1%}, memory 1.0 GB" in found.text
    file = tmp_path / "figures.json"
    alone = ["--sides", "ours", "--workloads", "llama_1b", "--tiny", "--alone", str(file)]
    assert gpu_training.main([*alone, "--rows", "2"]) == []
    assert json.loads(file.read_text()) is None


def test_each_number_of_rows_has_a_process_and_the_same_room(monkeypatch):
    runs = []

    def run(command, *, env, **_):
        runs.append((command[3:], env))
        if "--alone" in command:
            file = command[command.index("--alone") + 1]
            rows = int(command[command.index("--rows") + 1])
            written = None if rows > 2 else dataclasses.asdict(figures(rows))
            pathlib.Path(file).write_text(json.dumps(written))
        return types.SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(gpu_training.subprocess, "run", run)
    found = gpu_training.main(["--workloads", "llama_1b", "--rows", "1", "2", "4"])
    assert [one.rows for one in found] == [2, 2, 2]
    assert runs[0][0] == ["--check-alone"]
    for command, env in runs[1:]:
        assert command.count("--rows") == 1
        if {"pytorch", "pytorch_eager"} & set(
            command
        ):  # JAX beside it would take most of the memory
            assert env["JAX_PLATFORMS"] == "cpu"
        else:
            assert env["XLA_PYTHON_CLIENT_MEM_FRACTION"] == str(gpu_training.ROOM)


def test_gradients_are_compared_with_dense_attention():
    lines = attention_gradients.check(dense_core, rows=2, length=32)
    assert len(lines) == 15
    for line in lines:
        ours, rounding = re.findall(r"\d\.\de-\d\d", line)
        assert ours == rounding  # the same core
        assert float(ours) < 0.05  # bfloat16: sums of products with a relative error of 2^-9
    assert "there is no GPU" in attention_gradients.check()[0]


def test_every_workload_has_random_batches():
    for name in gpu_training.WORKLOADS:
        config = gpu_training.settings(name, rows=4, tiny=True)
        batch = gpu_training.random_batch(config)
        weights = next(x for name, x in batch.items() if name.endswith("loss_weights"))
        share = gpu_training.MASKED if name == "bert_large" else 1.0
        assert weights.mean() == pytest.approx(share, abs=0.1)


def test_bounds_follow_from_flops_and_bytes():
    found = gpus.bounds(gpus.GPUS["h100"], work=10**12, parameters=4 * 10**9, optimizer=8 * 10**9)
    assert found.sequences == 989.5
    assert found.state == 16 * 10**9  # float32: parameters, gradients and two moments
    assert found.left == 84_942_979_072 - 16 * 10**9
    assert found.update_seconds == 28e9 / 3.35e12


def test_plans_of_t5_large():
    lines = gpu_training.plan("t5_large")
    assert len(lines) == len(gpus.GPUS)
    h100 = next(line for line in lines if ", h100:" in line)
    assert "1.504 TFLOP a sequence, at most 658.0 sequences/s" in h100


def test_the_shapes_are_the_published_ones():
    sizes = {
        name: gpu_training.settings(name, rows=1, tiny=False) for name in ("t5_large", "llama_1b")
    }
    assert sizes["t5_large"].model.d_ff == 2816
    assert sizes["llama_1b"].data.lengths.targets == 2048
