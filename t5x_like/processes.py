"""Coordination of a run's processes: read a file once, and end all processes when one fails.

In every collective each process waits for all others, so a process that fails would leave them
waiting until a timeout of minutes. Instead it publishes the error in the key-value store of JAX's
coordination service, which the others poll, and all end with its exit status.
"""

import contextlib
import functools
import json
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np

Result = TypeVar("Result")

_ERROR = "t5x_like/error"  # the key of the first error of a run
_SEEN = f"{_ERROR}/seen"
_POLL = 1.0  # seconds between two looks at the key-value store
_PATIENCE = 15.0  # seconds to wait for all processes to see the error


class Client(Protocol):
    """The key-value store that the processes of a run share."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        """Set a value."""

    def key_value_try_get(self, key: str) -> str:
        """Return a value; raise an error if it is not set yet."""

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        """Wait until a value is set, and return it."""


def on_first_process(work: Callable[[], Result]) -> Result | None:
    """Call a function on the first process only, while the others wait. Call it on all processes.

    Returns:
        The function's result; None on the other processes.

    Raises:
        ValueError, OSError: the function raised it on the first process; the other processes then
            raise a ValueError.
    """
    import jax  # takes a second that the commands' help need not wait for
    from jax.experimental import multihost_utils

    result, problem = None, None
    if jax.process_index() == 0:
        try:
            result = work()
        except (ValueError, OSError) as error:
            problem = error
    failed = problem is not None
    if jax.process_count() > 1:
        failed = bool(multihost_utils.broadcast_one_to_all(np.array(failed)))
    if failed:
        raise problem or ValueError("the first process has ended with an error, see its output")
    return result


def from_first_process(read: Callable[[], Result]) -> Result:
    """Call `read` on the first process, and return its result on all processes.

    A network file system may show a new file to some machines and not yet to others: processes that
    each read a file to decide what to do next could differ, and wait for each other forever.

    Args:
        read: returns plain values, which are pickled and sent to the other processes.

    Raises:
        ValueError, OSError: see `on_first_process`.
    """
    import jax
    from jax.experimental import multihost_utils

    result = on_first_process(read)
    if jax.process_count() == 1:
        return result  # type: ignore[return-value]
    content = np.frombuffer(pickle.dumps(result), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(content))))
    return pickle.loads(multihost_utils.broadcast_one_to_all(np.resize(content, size)).tobytes())


# Functions that a process calls before another process's error ends it: its own code, which would
# have called them at its end, does not get there.
_before_end: list[Callable[[], None]] = []


def before_end(work: Callable[[], None]) -> Callable[[], None]:
    """Register a call before another process's error ends this process; it may not block.

    Returns:
        A function that unregisters it.
    """
    _before_end.append(work)
    return lambda: _before_end.remove(work)


class Watch:
    """Ends this process when another has failed, and all others when this one has.

    Args:
        client: the client of the coordination service.
        process, processes: the index of this process, and the number of processes.
    """

    def __init__(self, client: Client, *, process: int, processes: int):
        self._client, self._process, self._processes = client, process, processes
        self._leaving = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True, name="watch")
        self._thread.start()

    def close(self) -> None:
        """Stop watching, at an end without an error."""
        self._closed.set()
        self._thread.join()

    def fail(self, status: int, report: Callable[[], None] = lambda: None) -> NoReturn:
        """End all processes because of an error in this process.

        Args:
            status: the exit status.
            report: prints the error; not called if another process has failed before, since that
                causes errors in this process.
        """
        with self._leaving:
            failure = self._published()
            if failure is None:
                report()
                failure = {"process": self._process, "status": status}
                with contextlib.suppress(Exception):  # another process was faster
                    self._client.key_value_set(_ERROR, json.dumps(failure))
            self._leave(failure)

    def _listen(self) -> None:
        while not self._closed.wait(_POLL):
            if (failure := self._published()) is not None:
                with self._leaving:
                    self._leave(failure)

    def _published(self) -> dict[str, int] | None:
        try:
            return json.loads(self._client.key_value_try_get(_ERROR))
        except Exception:  # there is no error, or the coordinator is gone
            return None

    def _leave(self, failure: dict[str, int]) -> NoReturn:
        """Exit once all processes have seen the error, so that none fails because another is gone.

        Exit handlers are skipped: JAX's would wait for the other processes.
        """
        if failure["process"] != self._process:
            sys.stderr.write(
                f"error: process {failure['process']} of {self._processes} has ended with an "
                f"error, exit status {failure['status']}: see its output\n"
            )
            for work in _before_end:
                with contextlib.suppress(Exception):
                    work()
        with contextlib.suppress(Exception):
            self._meet(time.monotonic() + _PATIENCE)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(failure["status"])

    def _meet(self, end: float) -> None:
        """Wait until all processes have seen the error; the first, with the store, exits last."""
        self._client.key_value_set(f"{_SEEN}/{self._process}", "")
        wait = self._client.blocking_key_value_get
        if self._process:
            wait(f"{_SEEN}/all", _milliseconds(end))
            return
        with contextlib.suppress(Exception):  # a process is gone
            for process in range(self._processes):
                wait(f"{_SEEN}/{process}", _milliseconds(end))
        self._client.key_value_set(f"{_SEEN}/all", "")
        time.sleep(_POLL)


def _milliseconds(end: float) -> int:
    return max(1, round(1000 * (end - time.monotonic())))


_watch: Watch | None = None


def watch(client: Client, *, process: int, processes: int) -> Watch:
    """From now on, end all processes when one ends with an error."""
    global _watch
    _watch = Watch(client, process=process, processes=processes)
    sys.excepthook = functools.partial(_fail_by, sys.excepthook, _watch)
    return _watch


def _fail_by(
    report: Callable[..., Any],
    watch: Watch,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """Report an uncaught error, and end all processes: the `sys.excepthook` of `watch`."""
    watch.fail(1, lambda: report(kind, error, trace))


@contextlib.contextmanager
def ending_together() -> Iterator[None]:
    """End all processes if a SystemExit in this context, already reported, ends this process."""
    try:
        yield
    except SystemExit as end:
        if _watch is not None and end.code:
            _watch.fail(end.code if isinstance(end.code, int) else 1)
        raise
