"""GPT-3's config: the tokens of its batch ramp and of its schedule, as in the paper."""

import importlib.util
import pathlib

import pytest

from t5x_like.experiment.run import of_config
from t5x_like.systems.gpt3 import SIZES
from t5x_like.training import optimizers

ROOT = pathlib.Path(__file__).parents[1]
LENGTH = 2048


def config_of(size):
    path = ROOT / "configs" / "gpt3.py"
    spec = importlib.util.spec_from_file_location("config_gpt3", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(size)


@pytest.mark.parametrize("size", SIZES)
def test_the_ramp_grows_from_32k_tokens_and_300_billion_are_read(size):
    made = config_of(size)
    of_config(made)
    phases = of_config(made).phases
    rows = [phase.data.batch_size for phase in phases]
    tokens = [
        (phase.last - phase.first) * LENGTH * n for phase, n in zip(phases, rows, strict=True)
    ]
    assert rows[0] * LENGTH == 32 * 1024
    assert rows == sorted(set(rows))
    assert rows[-1] * LENGTH == pytest.approx(
        {"xl": 1e6, "2_7b": 1e6, "6_7b": 2e6, "13b": 2e6, "175b": 3.2e6}.get(size, 0.5e6), rel=0.05
    )
    assert 4e9 * 0.99 < sum(tokens[:-1]) < 12e9 * 1.01
    assert sum(tokens) == pytest.approx(300e9, rel=1e-4)
    assert {phase.reading for phase in phases} == {phases[0].name}  # one stream of data
    # Each stage begins on the line from the first to the last; rows are multiples of 16.
    for stage, number in enumerate(rows):
        assert number == pytest.approx(rows[0] + (rows[-1] - rows[0]) * stage / 8, abs=8)


def test_the_rate_follows_the_tokens():
    made = config_of("175b")
    _, schedule = optimizers.build(made.optimizer.to_dict(), axes={})
    phases, read, steps = (of_config(made).phases), 0, {}
    for phase in phases:
        rows = phase.data.batch_size
        for wanted in (375e6, 260e9):
            step = phase.first + (wanted - read) / (rows * LENGTH)
            if phase.first <= step <= phase.last:
                steps[wanted] = round(step)
        read += (phase.last - phase.first) * rows * LENGTH
    assert schedule(steps[375e6]) == pytest.approx(0.6e-4, rel=1e-3)
    assert schedule(steps[375e6] // 2) == pytest.approx(0.3e-4, rel=1e-2)
    assert schedule(steps[260e9]) == pytest.approx(0.6e-5, rel=1e-3)
    assert schedule(made.train.steps) == pytest.approx(0.6e-5, rel=1e-3)


def test_the_demo_reads_one_stream_too():
    made = config_of("demo")
    of_config(made)
    assert [phase.reading for phase in (of_config(made).phases)] == ["half", "half"]
