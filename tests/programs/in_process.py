"""Runs a command in this process as `python -m` does, for tests of many command lines."""

import contextlib
import dataclasses
import io
import runpy
import sys
import warnings
from collections.abc import Iterator
from unittest import mock

from absl import flags, logging


@dataclasses.dataclass(frozen=True)
class Done:
    """A command that has ended: its exit status, and what it printed."""

    status: int
    out: str
    err: str


def run(module: str, *arguments: str, stdin: str | None = "") -> Done:
    """Runs `python -m module arguments`; an error that the command does not catch is raised.

    Args:
        stdin: the text of standard input; None closes it.
    """
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with (
        mock.patch.object(sys, "argv", [module, *arguments]),
        mock.patch.object(sys, "stdin", None if stdin is None else standard_input(stdin)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _logging_there(),
        _without_flags(),
        warnings.catch_warnings(),
    ):
        # Another test may have imported the command's module: runpy warns of it.
        warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=False)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Done(status, out.getvalue(), err.getvalue())


def standard_input(text: str) -> io.TextIOWrapper:
    """Standard input with a text, which may be read as bytes too."""
    return io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")


@contextlib.contextmanager
def _logging_there() -> Iterator[None]:
    """Absl logs to the standard error that there was when it was imported."""
    handler = logging.get_absl_handler().python_handler
    before = handler.setStream(sys.stderr)
    try:
        yield
    finally:
        handler.setStream(before)


@contextlib.contextmanager
def _without_flags() -> Iterator[None]:
    """A process has the flags of one command."""
    before = set(flags.FLAGS)
    try:
        yield
    finally:
        for name in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, name)
