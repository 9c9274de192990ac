"""The benchmark for a GPU, on tiny shapes: its figures, and the batch that fits."""

import json
import math

import pytest

from benchmarks import gpu_training


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


def test_fewer_rows_are_tried_where_memory_is_short(monkeypatch):
    tried = []

    def side(config, model, batch, steps):
        tried.append(config.data.batch_size)
        if tried[-1] > 1:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return 0.5, 6.0, 10**9, "NVIDIA H100 80GB HBM3"

    monkeypatch.setitem(gpu_training.SIDES, "ours", side)
    found = gpu_training.measure("ours", "llama_1b", rows=[4, 2, 1], steps=1, tiny=True)
    assert tried == [4, 2, 1]
    assert found.rows == 1
    used = found.flops / 0.5 / 989.5e12
    assert f"2.0 sequences/s with 1 rows, utilization {used:.1%}, memory 1.0 GB" in found.text
    with pytest.raises(MemoryError, match="does not fit with 2 rows"):
        gpu_training.measure("ours", "llama_1b", rows=[4, 2], steps=1, tiny=True)


def test_the_shapes_are_the_published_ones():
    sizes = {
        name: gpu_training.settings(name, rows=1, tiny=False) for name in ("t5_large", "llama_1b")
    }
    assert sizes["t5_large"].model.d_ff == 2816
    assert sizes["llama_1b"].data.lengths.targets == 2048
