"""The lock of a workdir: a second run is refused, a dead one's lock is taken over."""

import json
import pathlib
import re
import subprocess
import sys
import threading
import time

import pytest

from t5x_like.experiment import run_folder
from t5x_like.experiment.command_line import WriteError
from t5x_like.experiment.run_folder import LockedError, WorkdirLock

HOLD = """
import pathlib, sys, time
from t5x_like.experiment.command_line import WriteError
from t5x_like.experiment.run_folder import WorkdirLock
with WorkdirLock(pathlib.Path(sys.argv[1]), report=print):
    print("locked", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name, seconds in (("EVERY", 0.05), ("STALE", 0.5), ("_SETTLED", 0.05)):
        monkeypatch.setattr(run_folder, name, seconds)


@pytest.fixture
def lines():
    return []


@pytest.fixture
def lock(tmp_path, lines):
    """Locks of one workdir."""
    return lambda: WorkdirLock(tmp_path / "run", report=lines.append)


@pytest.fixture
def holder(tmp_path):
    """A process that has the lock."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(
        command, cwd=pathlib.Path(__file__).parents[1], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def found(tmp_path):
    return json.loads((tmp_path / "run" / "lock.json").read_text())


def test_a_second_run_is_refused_and_a_later_one_is_not(lock, holder, tmp_path, lines):
    message = f"run' is in use by process {holder.pid} on host .*: stop that run, or set another"
    for enter in (lock().refuse_if_alive, lock().__enter__):
        with pytest.raises(LockedError, match=message):
            enter()
    holder.kill()
    holder.wait()
    lock().refuse_if_alive()
    with lock():
        assert found(tmp_path)["process"] != holder.pid
    assert len(lines) == 1
    assert re.fullmatch(
        f"took over the lock of process {holder.pid} on host .*, which is gone", lines[0]
    )
    assert list((tmp_path / "run").iterdir()) == []
    with lock():
        assert len(lines) == 1


def test_a_killed_process_that_nobody_waits_for_is_gone(lock, holder):
    holder.kill()  # and not waited for: the process is still listed
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            lock().refuse_if_alive()
            return
        except LockedError:
            time.sleep(0.05)
    pytest.fail("a process that has ended counts as alive")


def test_a_number_that_another_process_has_now_is_no_sign_of_life(lock, tmp_path, lines):
    with lock():
        own = found(tmp_path)
    (tmp_path / "run" / "lock.json").write_text(json.dumps(own | {"started": "1"}))
    with lock():
        assert "took over" in lines[0]


def test_a_run_on_another_host_is_watched_for_a_heartbeat(lock, tmp_path, lines):
    (tmp_path / "run").mkdir()
    path, ended = tmp_path / "run" / "lock.json", threading.Event()

    def beat():
        number = 0
        while not ended.wait(0.1):
            number += 1
            path.write_text(json.dumps({"host": "elsewhere", "process": 7, "beat": number}))

    path.write_text(json.dumps({"host": "elsewhere", "process": 7, "beat": 0}))
    thread = threading.Thread(target=beat)
    thread.start()
    lock().refuse_if_alive()  # it cannot know, and does not wait
    with pytest.raises(LockedError, match="in use by process 7 on host elsewhere"), lock():
        pass
    ended.set()
    thread.join()
    with lock() as own:
        own.check()
        assert lines[-1] == "took over the lock of process 7 on host elsewhere, which is gone"


# What a text editor, a disk that was full, or another program may leave there.
NO_LOCKS = ['{"a": 1}', "[1]", "null", '"text"', "", "{", "\x00" * 9, "[" * 100_000]
OF_THIS_MACHINE = [{}, {"process": "7"}, {"process": None}, {"process": -1}, {"process": True}]


@pytest.mark.parametrize("content", [*NO_LOCKS, *OF_THIS_MACHINE])
def test_a_file_that_is_no_lock_is_watched_and_taken_over(lock, tmp_path, lines, content):
    if not isinstance(content, str):
        content = json.dumps(run_folder._identity() | {"process": None} | content)
    path = tmp_path / "run" / "lock.json"
    path.parent.mkdir()
    path.write_text(content)
    lock().refuse_if_alive()
    with lock() as own:
        own.check()
        assert "which is gone" in lines[-1]
    assert not path.exists()


def test_a_run_whose_lock_was_taken_over_may_not_write(lock, tmp_path):
    with lock() as own:
        own.check()
        path = tmp_path / "run" / "lock.json"
        path.write_text(json.dumps({"host": "elsewhere", "process": 7, "run": "another"}))
        deadline = time.monotonic() + 60
        while not own._lost and time.monotonic() < deadline:
            time.sleep(0.02)
        with pytest.raises(LockedError, match=r"process 7 on host elsewhere.*took over"):
            own.check()
    assert found(tmp_path)["run"] == "another"


def test_a_workdir_that_cannot_be_made_is_named(lines):
    lock = WorkdirLock(pathlib.Path("/proc/run"), report=lines.append)  # where no folder is made
    with pytest.raises(WriteError, match=r"cannot write /proc/run: .*choose another place"):
        lock.__enter__()
