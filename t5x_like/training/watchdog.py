"""A watchdog that ends a hanging training process and prints the stacks of its threads."""

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

STATUS = 4  # the exit status of a process that the watchdog ends

_POLLS = 20  # per timeout
_LONGEST_POLL = 5.0  # seconds


class Watchdog:
    """A context manager around a training loop that ends the process if a step hangs.

    A process that waits forever (for a process that has died, for its data or for its device) would
    otherwise occupy its machines until somebody notices.

    Args:
        step_timeout: largest time in seconds from the end of a step to the end of the next, without
            the time in `paused`; 0 for no limit.
        pause_timeout: largest time in seconds in a `paused` block; 0 for no limit.
    """

    def __init__(self, step_timeout: float = 0.0, pause_timeout: float = 0.0):
        self._step = _Limit("train.step_timeout", step_timeout, "no training step has ended")
        self._pause = _Limit(
            "train.pause_timeout",
            pause_timeout,
            "an evaluation, a save or a compilation has gone on",
        )
        self._compiled: set[str] = set()
        self._since = time.monotonic()
        self._limit = self._step
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")

    def __enter__(self) -> "Watchdog":
        if self._step.seconds or self._pause.seconds:
            self._since = time.monotonic()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()

    @contextlib.contextmanager
    def step(self, task: str) -> Iterator[None]:
        """Time the call of a training step; a task's first call compiles, so it is a pause."""
        if task in self._compiled:
            yield
            self._since = time.monotonic()
        else:
            with self.paused():
                yield
            self._compiled.add(task)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Apply `pause_timeout` to work that may take longer: an evaluation, a checkpoint."""
        self._since = time.monotonic()
        self._limit = self._pause
        try:
            yield
        finally:
            self._since = time.monotonic()
            self._limit = self._step

    def _watch(self) -> None:
        shortest = min(limit.seconds for limit in (self._step, self._pause) if limit.seconds)
        poll = min(shortest / _POLLS, _LONGEST_POLL)
        while not self._closed.wait(poll):
            limit = self._limit
            if not limit.seconds:
                faulthandler.cancel_dump_traceback_later()
                continue
            # If another thread never releases Python's lock, this thread cannot run: then a thread
            # in C prints the stacks, and exits with status 1.
            faulthandler.dump_traceback_later(2 * limit.seconds + poll, exit=True)
            if time.monotonic() - self._since > limit.seconds:
                self._end(limit)

    def _end(self, limit: "_Limit") -> None:
        faulthandler.dump_traceback(all_threads=True)
        sys.stderr.write(
            f"error: {limit.exceeded} for {limit.seconds:g} s ({limit.setting}): the stacks of all "
            "threads are above; the same command resumes from the newest checkpoint\n"
        )
        sys.stderr.flush()
        os._exit(STATUS)


class _Limit(NamedTuple):
    """A limit on the time that something takes.

    Attributes:
        setting: the name of the setting that sets the limit.
        seconds: 0 for no limit.
        exceeded: the beginning of the error message if it takes longer.
    """

    setting: str
    seconds: float
    exceeded: str
