"""What the processes of a run do together: read a file once, and end where one of them fails.

In every collective each process waits for all others. One that ends by an error would leave them
there until a timeout of minutes. So it publishes the error in the key-value store of JAX's
coordination service, which the others look at, and all end with its exit status.
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
_POLL = 1.0  # seconds from one look at the key-value store to the next
_PATIENCE = 15.0  # seconds in which all processes see the error


class Client(Protocol):
    """The key-value store that the processes of a run share."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        """Set a value."""

    def key_value_try_get(self, key: str) -> str:
        """Return a value; raise an error if there is none yet."""

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        """Wait for a value."""


def on_first_process(work: Callable[[], Result]) -> Result | None:
    """Do something on the first process only; the others wait for it. Call it on all processes.

    Returns:
        The result; None on the others.

    Raises:
        ValueError, OSError: the work raised it on the first process; on the others it is a
            ValueError.
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
    """What the first process reads, on all of them, where a file decides what they do next.

    A network file system may show a new file to some machines and not to others yet: processes that
    each read for themselves could go different ways, and wait for each other for ever.

    Args:
        read: returns plain values, of which a copy goes to the other processes.

    Raises:
        ValueError, OSError: as `on_first_process`.
    """
    import jax
    from jax.experimental import multihost_utils

    result = on_first_process(read)
    if jax.process_count() == 1:
        return result  # type: ignore[return-value]
    content = np.frombuffer(pickle.dumps(result), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(content))))
    return pickle.loads(multihost_utils.broadcast_one_to_all(np.resize(content, size)).tobytes())


# What a process does before another's error ends it, as its own code would have at its end.
_before_end: list[Callable[[], None]] = []


def before_end(work: Callable[[], None]) -> Callable[[], None]:
    """Do something, too, before an error of another process ends this one; it may not wait.

    Returns:
        A function that takes it back.
    """
    _before_end.append(work)
    return lambda: _before_end.remove(work)


class Watch:
    """Ends this process where another has failed, and all others where this one has.

    Args:
        client: of the coordination service.
        process, processes: the number of this process, and of all.
    """

    def __init__(self, client: Client, *, process: int, processes: int):
        self._client, self._process, self._processes = client, process, processes
        self._leaving = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True, name="watch")
        self._thread.start()

    def close(self) -> None:
        """End without an error."""
        self._closed.set()
        self._thread.join()

    def fail(self, status: int, report: Callable[[], None] = lambda: None) -> NoReturn:
        """End all processes by an error of this one.

        Args:
            status: the exit status.
            report: prints the error, unless another process has failed before, which causes errors
                in this one.
        """
        with self._leaving:
            found = self._published()
            if found is None:
                report()
                found = {"process": self._process, "status": status}
                with contextlib.suppress(Exception):  # another process was faster
                    self._client.key_value_set(_ERROR, json.dumps(found))
            self._leave(found)

    def _listen(self) -> None:
        while not self._closed.wait(_POLL):
            if (found := self._published()) is not None:
                with self._leaving:
                    self._leave(found)

    def _published(self) -> dict[str, int] | None:
        try:
            return json.loads(self._client.key_value_try_get(_ERROR))
        except Exception:  # there is none, or the coordinator is gone
            return None

    def _leave(self, found: dict[str, int]) -> NoReturn:
        """Exit once all processes have seen the error, so that none fails by another's absence.

        Exit handlers are left out: JAX's would wait for the other processes.
        """
        if found["process"] != self._process:
            sys.stderr.write(
                f"error: process {found['process']} of {self._processes} has ended with an error, "
                f"exit status {found['status']}: see its output\n"
            )
            for work in _before_end:
                with contextlib.suppress(Exception):
                    work()
        with contextlib.suppress(Exception):
            self._meet(time.monotonic() + _PATIENCE)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(found["status"])

    def _meet(self, end: float) -> None:
        """Wait until all processes have seen the error; the first one, with the store, is last."""
        self._client.key_value_set(f"{_SEEN}/{self._process}", "")
        wait = self._client.blocking_key_value_get
        if self._process:
            wait(f"{_SEEN}/all", _milliseconds(end))
            return
        with contextlib.suppress(Exception):  # one is gone
            for process in range(self._processes):
                wait(f"{_SEEN}/{process}", _milliseconds(end))
        self._client.key_value_set(f"{_SEEN}/all", "")
        time.sleep(_POLL)


def _milliseconds(end: float) -> int:
    return max(1, round(1000 * (end - time.monotonic())))


_watch: Watch | None = None


def watch(client: Client, *, process: int, processes: int) -> Watch:
    """End all processes from now on where one of them ends by an error."""
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
    """The `sys.excepthook` of a process among several."""
    watch.fail(1, lambda: report(kind, error, trace))


@contextlib.contextmanager
def ending_together() -> Iterator[None]:
    """End all processes of the run where an error within, which is printed, ends this one."""
    try:
        yield
    except SystemExit as end:
        if _watch is not None and end.code:
            _watch.fail(end.code if isinstance(end.code, int) else 1)
        raise
