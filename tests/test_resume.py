"""Runs that are killed, signalled and restarted end as if nothing had happened."""

import contextlib
import json
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from t5x_like import checkpoints
from tests.programs import processes, tiny_run

STEPS = 20
ROOT = pathlib.Path(__file__).parents[1]


@contextlib.contextmanager
def _running(folder, *arguments):
    """The program in a process of its own, which does not outlive the test."""
    command = [sys.executable, "-m", "tests.programs.tiny_run", folder, *arguments]
    with subprocess.Popen(
        list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _wait_for(process, line):
    for read in process.stdout:
        if read.strip() == line:
            return
    pytest.fail(f"ended without {line!r}")


def _examples(folder):
    """The examples that each step has seen the last time that it was taken."""
    seen = {}
    for path in sorted(folder.glob("examples-*.jsonl")):
        steps = dict(json.loads(line) for line in path.read_text().splitlines())
        for step, ids in steps.items():
            seen.setdefault(step, []).extend(ids)
    return seen


def _assert_each_seen_once(folder):
    seen = _examples(folder)
    assert sorted(seen) == list(range(1, STEPS + 1))
    everything = sorted(number for ids in seen.values() for number in ids)
    assert everything == list(range(STEPS * tiny_run.BATCH))


def _assert_same(state, expected):
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, strict=True), state, expected)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The state after 20 steps without interruption."""
    folder = tmp_path_factory.mktemp("straight")
    outcome = tiny_run.run(folder, steps=STEPS)
    _assert_each_seen_once(folder)
    return jax.device_get(outcome.state)


def test_kill_and_restart_is_exact(straight, tmp_path):
    with _running(tmp_path, "--kill-at", 13) as killed:
        assert killed.wait() == -signal.SIGKILL
    assert max(_examples(tmp_path)) == 13
    outcome = tiny_run.run(tmp_path, steps=STEPS)
    _assert_same(jax.device_get(outcome.state), straight)
    _assert_each_seen_once(tmp_path)


def test_sigterm_saves_and_exits_well(straight, tmp_path):
    with _running(tmp_path, "--every", 100, "--delay", 0.1) as process:
        _wait_for(process, "step 3")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0
    [(step, interrupted)] = re.findall(r"done (\d+) (\w+)", output)
    assert int(step) < STEPS
    assert interrupted == "True"
    assert checkpoints.checkpoint_steps(tmp_path / "checkpoints") == [int(step)]
    outcome = tiny_run.run(tmp_path, steps=STEPS)
    _assert_same(jax.device_get(outcome.state), straight)
    _assert_each_seen_once(tmp_path)


@pytest.mark.slow
def test_kills_at_any_moment_of_saving_leave_a_readable_folder(straight, tmp_path):
    moments = random.Random(0)
    newest = 0
    for _ in range(6):
        with _running(tmp_path, "--every", 1, "--delay", 0.02) as process:
            _wait_for(process, f"step {3 * (newest // 3 + 1)}")
            time.sleep(moments.uniform(0, 0.15))
            process.kill()
        steps = checkpoints.checkpoint_steps(tmp_path / "checkpoints")
        if steps:
            newest = checkpoints.restore_params(tmp_path)[1]
            assert newest == steps[-1]
        if newest > STEPS - 4:
            break
    assert newest
    outcome = tiny_run.run(tmp_path, steps=STEPS, every=1)
    _assert_same(jax.device_get(outcome.state), straight)
    _assert_each_seen_once(tmp_path)


@pytest.mark.slow
def test_a_signal_to_one_of_two_processes_ends_their_evaluation(straight, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    # An evaluation of two hours, after step 3.
    both = ("--processes", 2, "--port", processes.free_port())
    common = ("--every", 100, "--evaluated", 72_000, *both)
    with (
        _running(tmp_path, *common, "--process", 0) as first,
        _running(tmp_path, *common, "--process", 1) as second,
    ):
        _wait_for(first, "evaluating")
        second.send_signal(signal.SIGTERM)
        outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
        assert [process.returncode for process in (first, second)] == [0, 0]
    assert {line for output in outputs for line in re.findall(r"done .*", output)} == {
        "done 4 True"
    }
    assert checkpoints.checkpoint_steps(tmp_path / "checkpoints") == [4]


@pytest.mark.slow
def test_two_processes_go_on_from_one_stop_together_and_one_goes_on(
    straight, tmp_path, monkeypatch
):
    tiny_run.run(tmp_path, steps=6, every=3)
    (tmp_path / "checkpoints" / "6" / "params" / "_METADATA").write_text("{}")

    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    common = ("--every", 100, "--delay", 0.1, "--processes", 2, "--port", processes.free_port())
    with (
        _running(tmp_path, *common, "--process", 0) as first,
        _running(tmp_path, *common, "--process", 1) as second,
    ):
        _wait_for(first, "step 6")  # from 3: the checkpoint of step 6 is damaged
        second.send_signal(signal.SIGTERM)  # and nothing to the other
        outputs = [process.communicate(timeout=240)[0] for process in (first, second)]
        assert [process.returncode for process in (first, second)] == [0, 0]
    [step] = {line for output in outputs for line in re.findall(r"done (\d+) True", output)}
    assert int(step) < STEPS
    folders = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert folders == sorted(["3", "6.damaged", step])

    outcome = tiny_run.run(tmp_path, steps=STEPS)
    jax.tree.map(  # two processes add in another order than one
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), outcome.state, straight
    )
    _assert_each_seen_once(tmp_path)
