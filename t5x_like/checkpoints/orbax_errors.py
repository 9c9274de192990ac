"""The errors of Orbax's threads, which are raised again where a checkpoint is waited for."""

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
    """Leave out what is printed of an error in a thread of Orbax; --verbosity=1 shows it.

    Where a file cannot be written, on a full disk for example, each thread of a save fails and logs
    it, asyncio logs those that Orbax did not wait for, TensorStore prints that it finds their event
    loops closed, and Python warns of what was to be awaited after the failure: hundreds of lines
    around the one line of the `CheckpointWriteError`. Some come after it, so this holds for the
    rest of the process.
    """
    for logger in (logging.get_absl_logger(), standard_logging.getLogger("asyncio")):
        logger.addFilter(_keep)
    sys.unraisablehook = functools.partial(_report, sys.unraisablehook)
    if not logging.level_debug():
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)


def _keep(record: standard_logging.LogRecord) -> bool:
    return logging.level_debug() or not _of_orbax(record)


def _of_orbax(record: standard_logging.LogRecord) -> bool:
    """Whether an error is logged by Orbax, came through its functions, or is TensorStore's."""
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
    """Report an error that no caller can catch, but for a loop that was closed after a failure."""
    if logging.level_debug() or str(error.exc_value) != "Event loop is closed":
        report(error)
