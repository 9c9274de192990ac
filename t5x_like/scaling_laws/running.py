"""Train the runs of a ladder one after the other, each in a process of its own."""

import contextlib
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from t5x_like.scaling_laws.ladder import Rung
from t5x_like.scaling_laws.trained import final_loss

_CONFIG = "configs/run.py"  # reads the config of a run from its folder
_OUTPUT = "output.txt"


def run(rungs: Sequence[Rung]) -> bool:
    """Train the runs that are not finished, and print a line for each.

    SIGTERM or Ctrl-C saves the current run and stops; the same call goes on from there.

    Returns:
        Whether all are finished.

    Raises:
        ValueError: a run failed, or the working folder has no configs/run.py.
    """
    if not pathlib.Path(_CONFIG).is_file():
        raise ValueError(f"--run reads {_CONFIG}: call it in the root of the repository")
    for number, rung in enumerate(rungs, start=1):
        start, done = time.monotonic(), final_loss(rung.config, rung.folder) is not None
        stopped = not done and _train(rung)
        loss = final_loss(rung.config, rung.folder)
        if stopped or loss is None:
            return False
        seconds = "finished before" if done else f"{time.monotonic() - start:.0f} s"
        sys.stdout.write(
            f"{number}/{len(rungs)} {rung.folder.name}: held-out loss {loss:.4f} ({seconds})\n"
        )
        sys.stdout.flush()
    return True


def _train(rung: Rung) -> bool:
    """Train a run in a process of its own; whether a signal ended it."""
    command = [sys.executable, "-m", "t5x_like.train", f"--config={_CONFIG}:{rung.folder}"]
    output = rung.folder / _OUTPUT
    with output.open("a") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        with _passing_signals_on(process) as signals:
            status = process.wait()
    if status and not signals:
        last = output.read_text().strip().splitlines()[-1:] or ["no output"]
        raise ValueError(f"{rung.folder.name} failed with status {status}: {last[0]} ({output})")
    return bool(signals)


@contextlib.contextmanager
def _passing_signals_on(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Pass signals to stop on to the run, which saves itself; yield those that came."""
    signals: list[int] = []

    def stop(number: int, frame: Any) -> None:
        signals.append(number)
        if number == signal.SIGTERM:  # a terminal sends Ctrl-C to both
            process.terminate()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
