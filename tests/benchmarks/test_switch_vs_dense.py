"""The comparison of Switch and T5: the arithmetic of what it reports."""

import importlib.util
import math
import pathlib

import pytest

PATH = pathlib.Path(__file__).parents[2] / "benchmarks/switch_vs_dense.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("switch_vs_dense", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_steps_to_a_loss_lie_on_the_line_between_two_evaluations(benchmark):
    losses = {100: 6.0, 200: 5.0, 300: 5.2, 400: 4.0}
    # Reached for the first time, though it rises again.
    reached = {7.0: 100, 5.5: 150, 5.1: 190, 5.0: 200, 4.6: 350}
    assert {x: benchmark.steps_to(x, losses) for x in reached} == pytest.approx(reached)
    assert math.isnan(benchmark.steps_to(3.9, losses))


def test_a_spread_is_the_mean_and_the_ends(benchmark):
    assert benchmark.spread([1.0, 2.0, 6.0], form=".1f") == "3.0 (1.0 to 6.0)"
    assert benchmark.spread([1.0], form=".1f") == "1.0"
