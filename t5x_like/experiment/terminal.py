"""The status line of a terminal, which is overwritten, and cleared before other output."""

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

from absl import logging
from rich.cells import cell_len, set_cell_size

_CLEAR = "\r\x1b[K"
_BETWEEN = "  "
_LEFT_OUT = "…"


class StatusLine:
    """The line at the cursor of a terminal.

    If the stream is not a terminal (a file, a pipe), each text is a line of its own. The program's
    other output must be written within `clearing`.

    Args:
        name: the stream, `stdout` or `stderr`.
        pause: seconds; in a file, a text that follows the line before within them is left out.
        stays: whether the line stays at the end of `clearing`.
    """

    def __init__(self, name: str, *, pause: float = 0.0, stays: bool = True) -> None:
        self._name, self._pause, self._stays = name, pause, stays
        self._is_shown = False  # the cursor is at the end of the status line
        self._is_within = False  # the cursor is at the end of other text
        self._written = float("-inf")  # when a line was written to a file

    def show(self, head: str, middle: Sequence[str] = (), tail: Sequence[str] = ()) -> None:
        """Show these parts in one line; parts of the middle are left out if it is too narrow."""
        stream = self._stream()
        if not is_terminal(stream):
            if time.monotonic() - self._written >= self._pause:
                _write(stream, _BETWEEN.join([head, *middle, *tail]) + "\n")
                self._written = time.monotonic()
            return
        # A character in the last column would move the cursor of some terminals to the next line.
        width = max(1, _columns(stream) - 1)
        before = "\n" if self._is_within else _CLEAR
        _write(stream, before + fit(head, middle, tail, width=width))
        self._is_shown, self._is_within = True, False

    @contextlib.contextmanager
    def clearing(self) -> Iterator[None]:
        """Within this context, clear the line before standard output or error gets other text.

        At the end the line stays, and the cursor moves to the next line, or the line is cleared.
        """
        if not is_terminal(self._stream()):
            yield
            return
        handler = logging.get_absl_handler().python_handler
        outer, streams = handler.stream, (sys.stdout, sys.stderr)
        if sys.stdout.isatty():
            sys.stdout = _Clearing(sys.stdout, self)
        if sys.stderr.isatty():
            sys.stderr = _Clearing(sys.stderr, self)
            handler.setStream(sys.stderr)
        try:
            yield
        finally:
            handler.setStream(outer)
            sys.stdout, sys.stderr = streams
            if self._is_shown:
                _write(self._stream(), "\n" if self._stays else _CLEAR)
            self._is_shown = self._is_within = False

    def make_room(self, text: str) -> None:
        """Clear the line before another text is written."""
        if text:
            if self._is_shown:
                _write(self._stream(), _CLEAR)
            self._is_shown, self._is_within = False, not text.endswith("\n")

    def _stream(self) -> TextIO:
        """Return the stream, which does not clear the line."""
        stream = getattr(sys, self._name)
        return stream.inner if isinstance(stream, _Clearing) else stream


class _Clearing:
    """A stream that clears the status line before text is written to it."""

    def __init__(self, inner: TextIO, line: StatusLine):
        self.inner, self._line = inner, line

    def write(self, text: str) -> int:
        self._line.make_room(text)
        return self.inner.write(text)

    def writelines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can overwrite a line."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def fit(head: str, middle: Sequence[str], tail: Sequence[str], *, width: int) -> str:
    """Join parts to a line of at most so many columns; wide characters take two.

    First the last parts of the middle are left out, and "…" marks them; then the end is cut off.
    """
    text = _BETWEEN.join([head, *middle, *tail])
    for count in range(len(middle) - 1, -1, -1):
        if cell_len(text) <= width:
            return text
        text = _BETWEEN.join([head, *middle[:count], _LEFT_OUT, *tail])
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + _LEFT_OUT


def _columns(stream: TextIO) -> int:
    """Return the width of the terminal, which may change at any time; 80 if it is unknown."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


LINE = StatusLine("stdout")
# What a command does before it prints its result.
PROGRESS = StatusLine("stderr", pause=10.0, stays=False)
