"""A profile of some steps: where it begins and ends."""

import jax
import pytest

from t5x_like.training.profile import Profile
from tests.recorded_loop import Recorder, fit_recorded, step_on


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
        return step_on(state, batch)

    fit_recorded(Recorder(), train_step=step, profile=Profile(first, number, "folder"))
    assert seen == traced
    assert not running
