"""Where the processes of a run stop together, and how one ends that no longer gets on."""

import itertools
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from t5x_like import stop_signal
from t5x_like.training import watchdog


class Store:
    """A key-value store like the coordination service's."""

    def __init__(self):
        self.values, self._changed = {}, threading.Condition()

    def key_value_set(self, key, value, allow_overwrite=False):
        with self._changed:
            assert allow_overwrite or key not in self.values
            self.values[key] = value
            self._changed.notify_all()

    def key_value_try_get(self, key):
        if key not in self.values:
            raise RuntimeError("NOT_FOUND: no such key")
        return self.values[key]

    def blocking_key_value_get(self, key, timeout_in_ms):
        with self._changed:
            assert self._changed.wait_for(lambda: key in self.values, timeout_in_ms / 1000)
        return self.values[key]


@pytest.fixture
def agreements(monkeypatch):
    """Those of three processes, and what asks each of them to stop."""
    monkeypatch.setattr(stop_signal, "_POLL", 0.02)
    monkeypatch.setattr(stop_signal, "_numbers", itertools.repeat(0))
    store, asked = Store(), [threading.Event() for _ in range(3)]
    made = [
        stop_signal.Agreement(store, process=n, processes=3, asked=one)
        for n, one in enumerate(asked)
    ]
    yield made, asked
    for one in made:
        one.close()


@pytest.mark.parametrize("asked", [[0], [2], [0, 1, 2]])
def test_processes_stop_at_the_same_step_whoever_is_asked(agreements, asked):
    made, events = agreements
    steps = [0, 0, 0]
    taken = threading.Condition()

    def run(process):
        generator = np.random.default_rng(process)
        while True:
            time.sleep(generator.uniform(0, 0.01))
            with taken:  # a step waits for all to take the step before the last
                steps[process] += 1
                taken.notify_all()
                assert taken.wait_for(lambda: min(steps) >= steps[process] - 2, 60)
            if steps[process] == 20 and process in asked:
                events[process].set()
            if made[process].tick():
                return

    threads = [threading.Thread(target=run, args=(process,)) for process in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(steps)) == 1
    assert steps[0] > 20


def test_a_process_that_has_ended_is_not_waited_for(agreements):
    made, events = agreements
    for one in made[1:]:
        one.close()
    events[0].set()
    for _ in range(50):
        assert not made[0].tick()
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ("contextlib.nullcontext()", "no training step has ended for 1 s (train.step_timeout)"),
        ("watchdog.paused()", "has gone on for 1.2 s (train.pause_timeout)"),
    ],
)
def test_a_process_that_hangs_prints_its_stacks_and_has_a_status_of_its_own(work, message):
    program = f"""
import contextlib, time
from t5x_like.training.watchdog import Watchdog
with Watchdog(1.0, 1.2) as watchdog, {work}:
    def waits_for_ever():
        time.sleep(600)
    waits_for_ever()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == watchdog.STATUS == 4
    assert "in waits_for_ever" in done.stderr
    assert message in done.stderr
