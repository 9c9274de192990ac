"""Trains a tiny model on several processes, one of which has something wrong with its machine.

    python -m tests.programs.failing_process WAY --config=... [--config.key=value ...]

WAY is `PROCESS:HOW`, and HOW one of the functions below.
"""

import os
import signal
import sys

from t5x_like.experiment import command_line


def data(step: int = 3) -> None:
    """A file of the data is bad, which shows when a batch is read."""
    from t5x_like.batches import sharded_batches

    read, count = sharded_batches.ShardedBatches.__next__, [0]

    def fail_later(self):
        count[0] += self._settings["split"] == "train"
        if count[0] > step:
            raise RuntimeError("rows 7 to 9 of corpus.array_record cannot be read")
        return read(self)

    sharded_batches.ShardedBatches.__next__ = fail_later


def tracing() -> None:
    """A setting is wrong on this machine only: one line, before work starts."""
    from t5x_like.experiment import recurrent_state

    def fail(models, parts):
        raise ValueError("data.settings.files='corpus/*.jsonl' names no file on this machine")

    recurrent_state.check_data = fail


def importing() -> None:
    """A package is broken on this machine."""
    sys.modules["t5x_like.experiment.recurrent_state"] = None


def config() -> None:
    """The config cannot be read."""
    sys.argv.append("--config.train.no_such_setting=1")


def disk() -> None:
    """The disk of this machine is full when its part of a checkpoint is written."""
    from t5x_like.checkpoints import manifest

    def full(folder, *, process, written):
        raise OSError(28, "No space left on device")

    manifest.sum_own = full


def killed() -> None:
    """The kernel kills it."""
    from t5x_like.training import loop

    loop.Log.finish = lambda self: os.kill(os.getpid(), signal.SIGKILL)


def blind() -> None:
    """A network file system does not show it the run's files yet: it fails only if it looks."""
    import pathlib

    from t5x_like.checkpoints import reading

    there, listed = pathlib.Path.is_file, reading.checkpoint_steps
    pathlib.Path.is_file = lambda path: path.name != "metrics.jsonl" and there(path)
    reading.checkpoint_steps = lambda folder: listed(folder)[:0]


if __name__ == "__main__":
    process, _, how = sys.argv.pop(1).partition(":")
    command_line.connect_processes()
    if os.environ["JAX_PROCESS_ID"] == process:
        globals()[how]()
    import runpy

    sys.argv[0] = "t5x_like.train"
    runpy.run_module("t5x_like.train", run_name="__main__", alter_sys=True)
