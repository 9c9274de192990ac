"""Stops a run at the same step on all processes when a signal comes."""

import contextlib
import itertools
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax
from absl import logging
from jax._src import distributed  # its client of the coordination service has no public name

from t5x_like.processes import Client

_POLL = 0.5  # seconds from one look at the coordination service to the next
_TIMEOUT = 300_000  # milliseconds for all processes to answer
_ENDED = -1  # the answer of a process that has left its loop

# All processes open their loops in the same order.
_numbers = itertools.count()


class _Cut(BaseException):
    """Raised within work that is cut short."""


class StopSignal:
    """Turns SIGTERM and Ctrl-C into a decision, the same on all processes: stop after this step.

    A second Ctrl-C kills the process, which leaves the checkpoints whole.
    """

    _SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.has_cut = False
        self._received = threading.Event()
        self._may_cut = False
        self._handlers: dict[signal.Signals, Any] = {}
        self._agreement: Agreement | None = None

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            for number in self._SIGNALS:
                self._handlers[number] = signal.signal(number, self._receive)
        if jax.process_count() > 1:
            client: Any = distributed.global_state.client
            self._agreement = Agreement(
                client,
                process=jax.process_index(),
                processes=jax.process_count(),
                asked=self._received,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._agreement is not None:
            self._agreement.close()
        for number, handler in self._handlers.items():
            # None is a handler that was not set from Python, and cannot be set again from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        self._received.set()  # no logging here: a handler may interrupt a write to the terminal
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        if self._may_cut and self._agreement is None:
            raise _Cut

    @contextlib.contextmanager
    def cutting_short(self) -> Iterator[None]:
        """End the work within when a signal comes.

        One process ends it at once, several where all come to the same `between_batches`.
        """
        global _cutting
        try:
            self._may_cut, _cutting = True, self
            yield
            self._may_cut = False
        except _Cut:
            self._may_cut, self.has_cut = False, True
        finally:
            _cutting = None

    def agreed(self) -> bool:
        """Whether to stop; all processes call it after each step, and get the same result."""
        stop = self._received.is_set() if self._agreement is None else self._agreement.tick()
        if stop:
            logging.warning("received a signal: saving, then stopping")
        return stop

    def cut_if_agreed(self) -> None:
        """End the work within `cutting_short`, if all processes have agreed to stop here."""
        if self._agreement is not None and self._agreement.tick():
            raise _Cut


# The signal whose `cutting_short` is open.
_cutting: StopSignal | None = None


def between_batches() -> None:
    """Let a signal end an evaluation here; all processes call it between the same two batches."""
    if _cutting is not None:
        _cutting.cut_if_agreed()


class Agreement:
    """Where all processes stop, found out in the background when the first of them is asked to.

    Each counts its ticks: steps, and batches of evaluations. No tick waits for another process
    before one is asked to stop. Then each holds its count and publishes it, and all go on to one
    tick after the largest. (A process may be within the step after its last tick, which needs the
    others to take it too.)

    Args:
        client: of the coordination service.
        process, processes: the number of this process, and of all.
        asked: set when this process is asked to stop.
    """

    def __init__(self, client: Client, *, process: int, processes: int, asked: threading.Event):
        self._client, self._process, self._processes = client, process, processes
        self._asked = asked
        self._prefix = f"t5x_like/stop/{next(_numbers)}"
        self._count = 0
        self._target: int | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._answered = False
        self._thread = threading.Thread(target=self._listen, daemon=True, name="stop_signal")
        self._thread.start()

    def tick(self) -> bool:
        """Count a tick, and return whether to stop at it."""
        with self._lock:  # held while the processes agree
            self._count += 1
            return self._target is not None and self._count >= self._target

    def close(self) -> None:
        """End without an agreement, or after it."""
        with self._lock:
            self._closed = True
            if not self._answered:
                self._answer(_ENDED)
        self._thread.join()

    def _answer(self, count: int) -> None:
        self._answered = True
        self._client.key_value_set(f"{self._prefix}/{self._process}", str(count))

    def _listen(self) -> None:
        asked = f"{self._prefix}/asked"
        while not self._closed:
            if self._asked.wait(_POLL):
                self._client.key_value_set(asked, "", allow_overwrite=True)
            elif not self._has(asked):
                continue
            with self._lock:
                if not self._closed:
                    self._agree()
            return

    def _has(self, key: str) -> bool:
        try:
            self._client.key_value_try_get(key)
        except Exception as error:  # jaxlib's class has no public name
            if "NOT_FOUND" not in str(error):
                raise
            return False
        return True

    def _agree(self) -> None:
        self._answer(self._count)
        counts = [
            int(self._client.blocking_key_value_get(f"{self._prefix}/{process}", _TIMEOUT))
            for process in range(self._processes)
        ]
        if _ENDED not in counts:  # else all come to the end of their loop
            self._target = max(counts) + 1
