"""Processes of a run that go the same way, and end together."""

import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from t5x_like import partitioning, processes
from tests.programs import processes as environments
from tests.test_torus_runs import arguments, write_texts

ROOT = pathlib.Path(__file__).parents[1]


class Store:
    """A key-value store like the coordination service's."""

    def __init__(self):
        self.values, self._changed = {}, threading.Condition()

    def key_value_set(self, key, value, allow_overwrite=False):
        with self._changed:
            if key in self.values and not allow_overwrite:
                raise RuntimeError("ALREADY_EXISTS")
            self.values[key] = value
            self._changed.notify_all()

    def key_value_try_get(self, key):
        if key not in self.values:
            raise RuntimeError("NOT_FOUND: no such key")
        return self.values[key]

    def blocking_key_value_get(self, key, timeout_in_ms):
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.values, timeout_in_ms / 1000):
                raise RuntimeError("DEADLINE_EXCEEDED")
        return self.values[key]


@pytest.fixture
def watches(monkeypatch):
    """Those of three processes, and the exit statuses of those that ended."""
    ended = []

    def leave(status):
        ended.append(status)
        threading.Event().wait()  # a process that has ended calls no more of its code

    monkeypatch.setattr(processes.os, "_exit", leave)
    # What other tests of this process have left there may wait for what is gone.
    monkeypatch.setattr(processes, "_before_end", [])
    monkeypatch.setattr(processes, "_POLL", 0.02)
    monkeypatch.setattr(processes, "_PATIENCE", 2.0)
    store = Store()
    made = [processes.Watch(store, process=n, processes=3) for n in range(3)]
    yield made, ended
    for one in made:
        one._closed.set()  # and not `close`, which waits for the threads


def wait_for(condition):
    end = time.monotonic() + 60  # of a machine that is busy otherwise
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def fail(watch, *arguments):
    """In a thread, since it does not return."""
    threading.Thread(target=watch.fail, args=arguments, daemon=True).start()


@pytest.mark.parametrize("process", [0, 2])
def test_an_error_of_one_process_ends_all_with_its_status_and_is_printed_once(
    watches, process, capsys, monkeypatch
):
    made, ended = watches
    printed, released = [], []
    monkeypatch.setattr(processes, "_before_end", [lambda: released.append("the lock")])
    fail(made[process], 3, lambda: printed.append("a bad file"))
    wait_for(lambda: len(ended) == 3)
    assert ended == [3, 3, 3]
    assert printed == ["a bad file"]
    assert released == ["the lock"] * 2  # the code of the process that failed does it itself
    lines = capsys.readouterr().err.splitlines()
    text = f"error: process {process} of 3 has ended with an error, exit status 3: see its output"
    assert lines == [text] * 2


def test_an_error_that_follows_from_anothers_is_not_printed(watches, capsys):
    made, ended = watches
    printed = []
    fail(made[1], 2, lambda: printed.append("a full disk"))
    wait_for(lambda: printed)
    fail(made[2], 1, lambda: printed.append("connection reset by peer"))
    wait_for(lambda: len(ended) == 3)
    assert printed == ["a full disk"]
    assert set(ended) == {2}


def test_without_an_error_nothing_ends(watches):
    made, ended = watches
    time.sleep(0.1)
    for one in made:
        one.close()
    assert ended == []


def test_what_one_process_reads_is_returned_and_its_errors_are_raised():
    assert processes.from_first_process(lambda: {"step": 3}) == {"step": 3}

    def fail():
        raise FileNotFoundError("no such file")

    with pytest.raises(FileNotFoundError, match="no such file"):
        processes.from_first_process(fail)


def test_the_other_processes_get_what_the_first_reads(monkeypatch):
    sent = []

    def send(value):
        sent.append(np.asarray(value))
        return sent[-1]

    def receive(value):
        assert np.asarray(value).shape == sent[0].shape
        return sent.pop(0)

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for process, exchange in enumerate((send, receive)):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", exchange)
        read = {0: lambda: {"steps": [4, 2]}, 1: lambda: pytest.fail("it reads")}[process]
        assert processes.from_first_process(read) == {"steps": [4, 2]}
    assert sent == []


def test_arrays_that_each_process_has_as_a_whole_are_not_joined(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(
        multihost_utils, "process_allgather", lambda *_, **__: pytest.fail("joined")
    )
    found = partitioning.fetch({"tokens": jax.numpy.arange(4), "lengths": np.arange(2)})
    np.testing.assert_array_equal(found["tokens"], range(4))


def run_on_two(way, folder, workdir, *, timeout):
    """The statuses and standard errors of two processes, and the seconds between their ends."""
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1")
    command = [sys.executable, "-m", "tests.programs.failing_process", way]
    runs = [
        subprocess.Popen(
            [*command, *arguments(folder, workdir)],
            cwd=ROOT,
            env=os.environ | {"XLA_FLAGS": flags} | own,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for own in environments.environments()
    ]
    try:
        wait = time.monotonic() + timeout
        ends = [None, None]
        while None in ends and time.monotonic() < wait:
            for n, run in enumerate(runs):
                if ends[n] is None and run.poll() is not None:
                    ends[n] = time.monotonic()
            time.sleep(0.1)
    finally:
        for run in runs:
            run.kill()
    errors = [run.communicate()[1] for run in runs]
    assert None not in ends, errors
    return [run.returncode for run in runs], errors, abs(ends[0] - ends[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("failing")
    write_texts(made / "texts.jsonl")
    return made


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("way", "status", "message"),
    [
        ("1:config", 2, "no_such_setting' does not exist"),
        (
            "1:importing",
            1,
            "ModuleNotFoundError: import of t5x_like.experiment.recurrent_state halted",
        ),
        ("1:tracing", 2, "names no file on this machine"),
        ("1:data", 1, "RuntimeError: rows 7 to 9 of corpus.array_record cannot be read"),
        ("0:data", 1, "RuntimeError: rows 7 to 9 of corpus.array_record cannot be read"),
        ("1:disk", 2, "cannot write the checkpoint of step 2 to .*No space left on device"),
    ],
)
def test_an_error_in_one_of_two_processes_ends_both_at_once(folder, tmp_path, way, status, message):
    statuses, errors, apart = run_on_two(way, folder, tmp_path / "run", timeout=600)
    assert statuses == [status, status], errors
    own = int(way[0])
    assert len(re.findall(message, errors[own])) == 1, errors[own]
    assert not re.search(message, errors[1 - own])
    short = f"error: process {own} of 2 has ended with an error, exit status {status}"
    assert short in errors[1 - own]
    assert apart < 10  # the coordination service waits 100 s for a heartbeat, its exit 300 s


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_process_that_does_not_see_the_files_of_a_run_goes_on_as_the_first_does(folder, tmp_path):
    for _ in range(2):  # a run, and the run that finds it finished
        statuses, errors, _ = run_on_two("1:blind", folder, tmp_path / "run", timeout=400)
        assert statuses == [0, 0], errors
