"""A profile of some steps: where it begins and ends."""

import jax
import pytest

from t5x_like.training.profile import Profile
from tests.training import test_loop


@pytest.mark.parametrize(
    ("first", "number", "traced"), [(3, 2, [3, 4]), (9, 5, [9, 10]), (0, 3, [])]
)
def test_a_profile_has_its_steps_and_ends_with_the_run(monkeypatch, first, number, traced):
    seen, running = [], []
    monkeypatch.setattr(jax.profiler, "start_trace", running.append)
    monkeypatch.setattr(jax.profiler, "stop_trace", running.clear)

    def step(state, batch):
        if running:
            seen.append(int(state.step) + 1)
        return test_loop._step(state, batch)

    test_loop._fit(test_loop.Recorder(), train_step=step, profile=Profile(first, number, "folder"))
    assert seen == traced
    assert not running
