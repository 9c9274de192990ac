"""Ends a process in which no training step ends any more, with the stacks of all its threads."""

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator

STATUS = 4  # the exit status of a process that it ends

_POLLS = 20  # within the time of a step
_LONGEST_POLL = 5.0  # seconds


class Watchdog:
    """Watches that steps end: a context manager around a training loop.

    A process that waits for ever, for another one that has died, for its data or for its device,
    would else cost its machines until somebody looks.

    Args:
        timeout: seconds from the end of one step to the end of the next, without the time within
            `paused`; 0 for no watch.
    """

    def __init__(self, timeout: float):
        self._timeout = timeout
        self._compiled: set[str] = set()
        self._since = time.monotonic()
        self._paused = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")

    def __enter__(self) -> "Watchdog":
        if self._timeout:
            self._since = time.monotonic()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the watch."""
        self._closed.set()
        if self._timeout:
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()

    @contextlib.contextmanager
    def step(self, task: str) -> Iterator[None]:
        """The call of a training step; the first one of a task compiles it, and is not watched."""
        if task in self._compiled:
            yield
            self._since = time.monotonic()
        else:
            with self.paused():
                yield
            self._compiled.add(task)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Do not watch the work within: an evaluation, a checkpoint."""
        self._paused = True
        try:
            yield
        finally:
            self._since = time.monotonic()
            self._paused = False

    def _watch(self) -> None:
        poll = min(self._timeout / _POLLS, _LONGEST_POLL)
        while not self._closed.wait(poll):
            if self._paused:
                faulthandler.cancel_dump_traceback_later()
                continue
            # Where Python's lock is never given back, this thread cannot run: a thread in C then
            # prints the stacks, and exits with status 1.
            faulthandler.dump_traceback_later(2 * self._timeout + poll, exit=True)
            if time.monotonic() - self._since > self._timeout:
                self._end()

    def _end(self) -> None:
        faulthandler.dump_traceback(all_threads=True)
        sys.stderr.write(
            f"error: no training step has ended for {self._timeout:g} s (train.step_timeout): the "
            "stacks of all threads are above; the same command resumes from the newest checkpoint\n"
        )
        sys.stderr.flush()
        os._exit(STATUS)
