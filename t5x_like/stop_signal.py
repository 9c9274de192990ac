"""Stop a run at the same step on all processes when a signal comes."""

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

_POLL = 0.5  # seconds between two looks at the coordination service
_TIMEOUT = 300_000  # milliseconds for all processes to answer
_ENDED = -1  # the answer of a process that has left its loop

# Numbers the agreements of a process; all processes begin their loops in the same order.
_numbers = itertools.count()


class _Cut(BaseException):
    """Raised within `cutting_short` to end the work early."""


class StopSignal:
    """Turns SIGTERM and Ctrl-C into the decision of all processes to stop after the same step.

    A second Ctrl-C kills the process, which leaves the checkpoints intact.
    """

    _SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.has_cut = False
        self._received = threading.Event()
        self._may_cut = False
        self._handlers: dict[signal.Signals, Any] = {}
        self._agreement: Agreement | None = None

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
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
            # None stands for a handler that was not set from Python, and cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        self._received.set()  # no logging here: a handler may interrupt a write to the terminal
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        if self._may_cut and self._agreement is None:
            raise _Cut

    @contextlib.contextmanager
    def cutting_short(self) -> Iterator[None]:
        """End the work within this context early when a signal comes.

        A single process ends it at once, several at the `between_batches` that they agree on.
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
        """Return whether to stop; all processes call it after each step and get the same result."""
        stop = self._received.is_set() if self._agreement is None else self._agreement.tick()
        if stop:
            logging.warning("received a signal: saving, then stopping")
        return stop

    def cut_if_agreed(self) -> None:
        """End the work within `cutting_short`, if all processes have agreed to stop here."""
        if self._agreement is not None and self._agreement.tick():
            raise _Cut


# The StopSignal whose `cutting_short` is active.
_cutting: StopSignal | None = None


def between_batches() -> None:
    """Let a signal end an evaluation here; all processes call it between the same two batches."""
    if _cutting is not None:
        _cutting.cut_if_agreed()


class Agreement:
    """An agreement of all processes on the tick to stop at, made once any is asked to.

    Each process counts its ticks: steps, and batches of evaluations. No tick waits for another
    process until one is asked to stop. Then each holds its count and publishes it from a background
    thread, and all continue to one tick after the largest count. (A process may be within the step
    after its last tick, which needs the others to take it too.)

    Args:
        client: the client of the coordination service.
        process, processes: the index of this process, and the number of processes.
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
        """End the background thread, and publish that this process has left its loop."""
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
        if _ENDED not in counts:  # otherwise all reach the end of their loop
            self._target = max(counts) + 1
