"""The status line: one row of a terminal of any width, between other output; lines in files."""

import contextlib
import fcntl
import io
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import termios
import threading

import pytest
from absl import logging
from rich.cells import cell_len

from t5x_like.experiment import reporting, terminal

RATES = {"tokens_per_second": 1234.0, "seconds_left": 3661.0}


class Screen:
    """A terminal of so many columns; `rows` is what it shows of all that was written to it."""

    def __init__(self, columns):
        self._columns, self._read = columns, b""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.stream = os.fdopen(slave, "w", encoding="utf-8")
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self):
        with contextlib.suppress(OSError):  # raised when the other end is closed
            while part := os.read(self._master, 1000):
                self._read += part

    def rows(self):
        """The rows, without empty ones at the end; closes the terminal."""
        self.stream.close()
        self._thread.join()
        os.close(self._master)
        rows, column = [""], 0
        for part in re.findall(r"\x1b\[K|.", self._read.decode(), re.DOTALL):
            if part == "\r":
                column = 0
            elif part == "\n":
                rows.append("")
            elif part == "\x1b[K":
                assert column == 0
                rows[-1] = ""
            else:
                if column + cell_len(part) > self._columns:
                    rows.append("")
                    column = 0
                assert cell_len(rows[-1]) == column, "text over other text"
                rows[-1] += part
                column += cell_len(part)
        while rows and not rows[-1]:
            rows.pop()
        return rows


@pytest.fixture
def screen(request, monkeypatch):
    """A terminal of 80 columns, or of the parameter."""
    monkeypatch.setenv("TERM", "xterm")
    return Screen(getattr(request, "param", 80))


@contextlib.contextmanager
def running(screen):
    """Standard output and error are the terminal, and training runs."""
    # Within the test: pytest sets both before each phase.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", screen.stream)
        patch.setattr(sys, "stderr", screen.stream)
        with terminal.LINE.clearing():
            yield
        assert sys.stdout is sys.stderr is screen.stream


def test_updates_are_one_row_which_stays_at_the_end(screen):
    show = reporting.ProgressLine(steps=10)
    with running(screen):
        for step in range(1, 5):
            show(step, {"loss": 10.0**step} | RATES)
        show(5, {"loss": 1.0})
    screen.stream.write("report\n")
    assert screen.rows() == ["step 5/10  loss 1.0000", "report"]


@pytest.mark.parametrize("screen", [5, 20, 40, 79], indirect=True)
@pytest.mark.parametrize("tasks", [("",), ("mrpc", "cola", "sst2"), ("翻訳", "要約", "분류")])
def test_a_narrow_terminal_has_one_row(screen, tasks):
    show = reporting.ProgressLine(steps=1000, tasks=tasks)
    with running(screen):
        for step in (1, 500, 999):
            values = {f"{task}/loss" if task else "loss": 1.0 * step for task in tasks}
            show(step, values | RATES)
    [row] = screen.rows()
    assert row.startswith("step"[: len(row) - 1])


@pytest.mark.parametrize("screen", [70], indirect=True)
def test_of_several_tasks_the_last_are_left_out(screen):
    tasks = ("mrpc", "cola", "翻訳")
    show = reporting.ProgressLine(steps=10, tasks=tasks)
    with running(screen):
        show(3, {f"{task}/loss": 1.0 for task in tasks} | RATES)
    assert screen.rows() == ["step 3/10  mrpc loss 1.0000  …  1,234 tokens/s  1:01:01 left"]


def test_other_output_has_rows_of_its_own(screen):
    show = reporting.ProgressLine(steps=10)
    with running(screen):
        show(1, {"loss": 1.0})
        reporting.EvaluationLines().write_scalars(1, {"cola/loss": 0.5})
        show(2, {"loss": 1.0})
        print("printed")
        show(3, {"loss": 1.0})
        sys.stderr.write("an error\n")
        show(4, {"loss": 1.0})
        logging.get_absl_handler().python_handler.stream.write("a warning\n")
        show(5, {"loss": 1.0})
        sys.stderr.write("no end")
        sys.stderr.flush()
        show(6, {"loss": 1.0})
    assert screen.rows() == [
        "  held out at step 1: cola/loss 0.5000",
        "printed",
        "an error",
        "a warning",
        "no end",
        "step 6/10  loss 1.0000",
    ]


def test_an_error_ends_the_line(screen):
    def fail():
        with running(screen):
            reporting.ProgressLine(steps=10)(1, {"loss": 1.0})
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert screen.rows() == ["step 1/10  loss 1.0000"]


def test_standard_error_in_a_file_gets_no_control_characters(screen, monkeypatch):
    monkeypatch.setattr(sys, "stdout", screen.stream)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with terminal.LINE.clearing():
        reporting.ProgressLine(steps=10)(1, {"loss": 1.0})
        sys.stderr.write("an error\n")
    assert sys.stderr.getvalue() == "an error\n"
    assert screen.rows() == ["step 1/10  loss 1.0000"]


def test_a_dumb_terminal_and_a_file_get_a_line_for_each_update(screen, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    for stream in (screen.stream, io.StringIO()):
        monkeypatch.setattr(sys, "stdout", stream)
        with terminal.LINE.clearing():
            for step in (1, 2):
                reporting.ProgressLine(steps=10)(step, {"loss": 1.0})
    expected = [f"step {step}/10  loss 1.0000" for step in (1, 2)]
    assert stream.getvalue().splitlines() == expected
    assert screen.rows() == expected


def progress(**settings):
    return terminal.StatusLine("stderr", **{"pause": 0.0, "stays": False, **settings})


@contextlib.contextmanager
def shown_by(line, screen):
    """Standard output and error are the terminal, and a command shows its progress."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", screen.stream)
        patch.setattr(sys, "stderr", screen.stream)
        with line.clearing():
            yield


def test_progress_is_one_line_that_is_gone_before_an_error_and_a_result(screen):
    line = progress()
    with shown_by(line, screen):
        line.show("reading the study")
        print("first: python -m t5x_like.vocabulary")
        line.show("counting run 1 of 2")
        line.show("counting run 2 of 2: " + "word " * 40)
    screen.stream.write("error: a setting\n")
    assert screen.rows() == ["first: python -m t5x_like.vocabulary", "error: a setting"]


@pytest.mark.parametrize("screen", [20], indirect=True)
def test_progress_is_overwritten_and_cut_to_the_terminal(screen):
    line = progress(stays=True)
    with shown_by(line, screen):
        line.show("a long text about run 1 of 2")
        line.show("another text about run 2 of 2")
    assert screen.rows() == ["another text about…"]


@pytest.mark.parametrize(("pause", "lines"), [(3600.0, ["one"]), (0.0, ["one", "two"])])
def test_progress_in_a_file_is_lines_with_a_pause_between(capsys, pause, lines):
    line = progress(pause=pause)
    with line.clearing():
        line.show("one")
        line.show("two")
    assert capsys.readouterr().err.splitlines() == lines


# Ends a command where it imports JAX, which takes seconds.
WITHOUT_JAX = """
import runpy, sys
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "jax":
            sys.stderr.write("JAX is imported\\n")
            sys.stderr.flush()
            os._exit(0)
import os
sys.meta_path.insert(0, Stop())
name, *sys.argv[1:] = sys.argv[1:]
runpy.run_module(f"t5x_like.{name}", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["study", "t5_grid", "--plan"], "reading the study t5_grid ..."),
        (["study", "--all", "--plan"], "reading the studies ..."),
        (["plan", "--config=configs/t5.py:small"], "reading the config ..."),
    ],
)
def test_a_plan_shows_what_it_does_before_it_imports_jax(arguments, line):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAX, *arguments],
        cwd=pathlib.Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines() == [line, "JAX is imported"]
