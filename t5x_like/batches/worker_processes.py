"""Run a function on many items in worker processes, which end when this process does."""

import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any

# (function, items) -> the function's result of each item, in the order in which they are finished.
ProcessMap = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]


@contextlib.contextmanager
def pool(processes: int) -> Iterator[ProcessMap]:
    """Start worker processes; with one process, items are done in this process.

    Args:
        processes: the number of processes.

    Yields:
        A function that yields the results of a function for many items. Both can be pickled, as can
        the results. It raises OSError if a process was killed, and errors of the function as they
        are.
    """
    if processes == 1:
        yield map
        return
    # Not fork: it would copy locks that threads of this process may hold.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        processes, mp_context=context, initializer=_end_with_parent
    ) as executor:
        try:
            yield functools.partial(_results, executor)
        finally:
            executor.shutdown(cancel_futures=True)


def _results(
    executor: concurrent.futures.Executor, function: Callable[[Any], Any], items: Iterable[Any]
) -> Iterator[Any]:
    futures = [executor.submit(function, item) for item in items]
    try:
        for future in concurrent.futures.as_completed(futures):
            yield future.result()
    except BrokenProcessPool as error:
        raise OSError(
            "a process was killed, perhaps for its memory: set fewer --processes; the same command "
            "continues with the files that are missing"
        ) from error


def _end_with_parent() -> None:
    """Exit this process when its parent process ends, even if the parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # for the type checker

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
