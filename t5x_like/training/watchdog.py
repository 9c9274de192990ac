"""Ends a process that hangs while it trains, with the stacks of all its threads."""

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

STATUS = 4  # the exit status of a process that it ends

_POLLS = 20  # within the time of a step
_LONGEST_POLL = 5.0  # seconds


class Watchdog:
    """Watches that steps end: a context manager around a training loop.

    A process that waits for ever, for another one that has died, for its data or for its device,
    would else cost its machines until somebody looks.

    Args:
        step_timeout: seconds from the end of one step to the end of the next, without the time
            within `paused`; 0 for no watch.
        pause_timeout: seconds for what stands within `paused`; 0 for no watch.
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
        """The call of a training step; the first one of a task compiles it, which is a pause."""
        if task in self._compiled:
            yield
            self._since = time.monotonic()
        else:
            with self.paused():
                yield
            self._compiled.add(task)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Work that is no step, and may take longer: an evaluation, a checkpoint."""
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
            # Where Python's lock is never given back, this thread cannot run: a thread in C then
            # prints the stacks, and exits with status 1.
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
    """How long something may take.

    Attributes:
        setting: the setting that says so.
        seconds: 0 for no limit.
        exceeded: what is wrong where it takes longer.
    """

    setting: str
    seconds: float
    exceeded: str
