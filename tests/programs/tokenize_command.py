"""The command `tokenize` on the task c, and batches of its folder beside those of the text."""

import pathlib
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[2]


def run(module, settings, output, *more):
    """The finished command, with what it printed."""
    words = _words(module, settings, output, *more)
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)


def run_twice(module, settings, output, *, pattern, files):
    """Runs the command in two processes, kills it after its first file, and runs it again.

    Args:
        pattern: of the files.
        files: their number.
    """
    words = _words(module, settings, output, "--processes=2")
    killed = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL)
    while killed.poll() is None and not list(output.rglob(pattern)):
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (output / "tokenized.json").exists()
    time.sleep(2)  # its processes end with it
    left = len(list(output.rglob(pattern)))
    assert 0 < left < files
    done = run(module, settings, output, "--processes=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{left + 1} of {files} files\n")


def assert_one_line(done, message, *, output):
    """The command refused its arguments in one line, and wrote nothing."""
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not output.exists()


def take(batches, number):
    """The next batches."""
    return [next(batches) for _ in range(number)]


def assert_equal(found, expected):
    """The batches are equal byte for byte."""
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert {name: (rows.dtype, rows.tobytes()) for name, rows in one.items()} == {
            name: (rows.dtype, rows.tobytes()) for name, rows in other.items()
        }


def _words(module, settings, output, *more):
    return [
        *(sys.executable, "-m", "t5x_like", "tokenize", "--config=configs/t5.py:small"),
        *(f"--output={output}", f"--config.data.module={module}", "--config.data.task=c"),
        *(f"--config.data.settings.{key}={value}" for key, value in settings.items()),
        *("--config.data.vocabulary=bytes", *more),
    ]
