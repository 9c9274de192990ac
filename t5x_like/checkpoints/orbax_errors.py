"""Filters for the errors that Orbax's threads log; waiting for a checkpoint raises them again."""

import functools
import logging as standard_logging
import pathlib
import sys
import traceback
import warnings
from collections.abc import Callable

import orbax.checkpoint
from absl import logging

_ORBAX = str(pathlib.Path(orbax.checkpoint.__file__).parent)


@functools.cache
def leave_out_tracebacks() -> None:
    """Suppress the output about errors in Orbax's threads; --verbosity=1 shows it.

    If a file cannot be written, on a full disk for example, each thread of a save fails and logs
    it, asyncio logs the futures that Orbax did not wait for, TensorStore prints that their event
    loops are closed, and Python warns of coroutines that were never awaited: hundreds of lines
    around the line of the `CheckpointWriteError`. Some come after it, so the output stays
    suppressed for the rest of the process.
    """
    for logger in (logging.get_absl_logger(), standard_logging.getLogger("asyncio")):
        logger.addFilter(_keep)
    sys.unraisablehook = functools.partial(_report, sys.unraisablehook)
    if not logging.level_debug():
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)


def _keep(record: standard_logging.LogRecord) -> bool:
    return logging.level_debug() or not _of_orbax(record)


def _of_orbax(record: standard_logging.LogRecord) -> bool:
    """Return whether Orbax logged an error, or it passed through Orbax or came from TensorStore."""
    if not record.exc_info:
        return False
    if record.exc_info[2] is None:  # no Python code raised it: TensorStore's C++ ended a future
        return record.name == "asyncio"
    frames = traceback.extract_tb(record.exc_info[2])
    files = [record.pathname, *(frame.filename for frame in frames)]
    return any(file.startswith(_ORBAX) for file in files)


def _report(
    report: Callable[["sys.UnraisableHookArgs"], object], error: "sys.UnraisableHookArgs"
) -> None:
    """Report an error that no caller can catch, unless a failed save has closed its event loop."""
    if logging.level_debug() or str(error.exc_value) != "Event loop is closed":
        report(error)
