"""Train runs from their folders, each in a separate process, several at a time if requested.

The processes are forked from a server that has imported the modules of a run, but not initialized
JAX: short runs would otherwise spend much of their time on imports.
"""

import contextlib
import dataclasses
import fcntl
import functools
import json
import multiprocessing.forkserver
import os
import pathlib
import runpy
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.context import ForkServerContext
from typing import IO, Any

from t5x_like.experiment import command_line, startup
from t5x_like.names import trusts_code

_CONFIG = "configs/run.py"  # loads the config of a run from its folder
_OUTPUT = "output.txt"
_POLL = 0.1  # seconds
# What a run imports; the last two only while it runs.
_IMPORTED = ("t5x_like.train", "t5x_like.grain_pipeline.corpus_tasks", "matplotlib.figure")


@dataclasses.dataclass(frozen=True)
class Job:
    """A run to train.

    Attributes:
        folder: the folder of the run, with its config.json.
        is_finished: returns whether the run has been trained to its end.
        after: folders of runs that must finish before this run starts.
    """

    folder: pathlib.Path
    is_finished: Callable[[], bool]
    after: tuple[pathlib.Path, ...] = ()


# (a finished job, its seconds, or None if it was finished before)
Report = Callable[[Job, float | None], None]


def train(jobs: Sequence[Job], *, report: Report, processes: int = 1) -> bool:
    """Train the unfinished runs in order.

    SIGTERM or Ctrl-C saves the current runs and stops; the same call continues them. If a run
    fails, the others are saved and stopped too, before the error is raised.

    Args:
        jobs: the runs, each behind the runs in its `after`.
        report: called as each run is finished.
        processes: the number of runs at a time; each computes on its share of the cores.

    Returns:
        Whether all runs are finished.

    Raises:
        ValueError: a run failed, or the working folder has no configs/run.py.
    """
    if not pathlib.Path(_CONFIG).is_file():
        raise ValueError(f"a run is read by {_CONFIG}: call it in the root of the repository")
    waiting, done = list(jobs), set[pathlib.Path]()
    active: dict[Job, _Process] = {}
    shares = _shares(processes)
    with _passing_signals_on(active) as signals, _ending(active):
        while active or (waiting and not signals):
            for job in _ready(waiting, done) if not signals else ():
                if job.is_finished():
                    report(job, None)
                    done.add(job.folder)
                elif shares:
                    active[job] = _Process(job.folder, shares.pop())
                else:
                    break
                waiting.remove(job)
            for job in [job for job, process in active.items() if process.has_ended]:
                process = active.pop(job)
                shares.append(process.cores)
                if not signals:
                    process.check()
                if not job.is_finished():
                    return False  # only this run got a signal: stop the others too
                report(job, process.seconds)
                done.add(job.folder)
            time.sleep(_POLL if active else 0)
    return not waiting


def _shares(processes: int) -> list[set[int]]:
    """Return the cores of each of several processes; none where they cannot be bound to cores.

    Otherwise the threads of one process wait for cores on which another computes, and all
    other threads of this process wait for them.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    each = len(cores) // processes
    return [set(cores[process * each : (process + 1) * each]) for process in range(processes)]


def _ready(waiting: Sequence[Job], done: set[pathlib.Path]) -> list[Job]:
    return [job for job in waiting if done.issuperset(job.after)]


class _Process:
    """A training process, whose output goes to output.txt in the folder of its run.

    Args:
        folder: the folder of the run.
        cores: the cores on which it computes; empty for all.
    """

    def __init__(self, folder: pathlib.Path, cores: set[int]):
        self._folder, self._start = folder, time.monotonic()
        self.cores = cores
        with (folder / _OUTPUT).open("a") as file:
            _lock(file, folder)  # the process locks it again
        # If the user trusted the code of this config, its process may run it too.
        trusts = trusts_code(json.loads((folder / "config.json").read_bytes()))
        self._process = _server().Process(target=_train, args=(folder, cores, trusts))
        self._process.start()

    @property
    def has_ended(self) -> bool:
        return self._process.exitcode is not None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def stop(self) -> None:
        """Ask the run to save a checkpoint and end."""
        if not self.has_ended:
            self._process.terminate()

    def wait(self) -> None:
        self._process.join()

    def check(self) -> None:
        """Raise a ValueError if the run failed."""
        status, output = self._process.exitcode, self._folder / _OUTPUT
        if status:
            last = output.read_text().strip().splitlines()[-1:] or ["no output"]
            raise ValueError(f"{self._folder} failed with status {status}: {last[0]} ({output})")


@functools.cache
def _server() -> ForkServerContext:
    """Start the server, and return the context in which it forks processes."""
    startup.silence_tensorflow()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    with startup.preloading_tcmalloc():
        multiprocessing.forkserver.ensure_running()
    return context


def _train(folder: pathlib.Path, cores: set[int], trusts: bool) -> None:
    """Train the run of a folder in this process, as `python -m t5x_like.train` does.

    Args:
        folder: the folder of the run; this process holds the lock of its output file until it
            ends, even orphaned.
        cores: the cores on which to compute; empty for all.
        trusts: whether the user trusts the code that the config names.
    """
    with (folder / _OUTPUT).open("a") as file, contextlib.suppress(OSError):
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        fcntl.flock(file, fcntl.LOCK_EX)
    if cores:
        os.sched_setaffinity(0, cores)
    flags = [f"--config={_CONFIG}:{folder}", *([f"--{command_line.TRUST}"] if trusts else [])]
    sys.argv = ["t5x_like.train", *flags]
    runpy.run_module("t5x_like.train", run_name="__main__", alter_sys=True)


def _lock(output: IO[str], folder: pathlib.Path) -> None:
    """Lock the output file of a run, unless another process trains the run."""
    try:
        fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ValueError(
            f"{folder} is being trained by another process: wait for it, or end it"
        ) from error
    except OSError:  # the file system has no locks
        return


@contextlib.contextmanager
def _ending(active: dict[Job, _Process]) -> Iterator[None]:
    """On exit, stop the processes that still run and wait for them."""
    try:
        yield
    finally:
        for process in active.values():
            process.stop()
        for process in active.values():
            process.wait()


@contextlib.contextmanager
def _passing_signals_on(active: dict[Job, _Process]) -> Iterator[list[int]]:
    """Forward SIGTERM to the runs, which save and stop; yield the list of received signals."""
    signals: list[int] = []

    def stop(number: int, frame: Any) -> None:
        signals.append(number)
        if number == signal.SIGTERM:  # a terminal sends Ctrl-C to the runs itself
            for process in list(active.values()):
                process.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
