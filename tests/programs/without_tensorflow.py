"""Runs `t5x-like COMMAND ...` where TensorFlow and seqio cannot be imported.

With KILLED_AT in the environment it dies of SIGKILL when that step is logged and the folder
KILLED_AFTER is there.
"""

import os
import signal
import sys
import time

ABSENT = ("tensorflow", "tensorflow_text", "tensorflow_datasets", "seqio", "clu.metric_writers")


class WithoutThem:
    """A finder of modules that does not find them."""

    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, *arguments):
        absent = any(name == one or name.startswith(one + ".") for one in ABSENT)
        return None if absent else self.finder.find_spec(name, *arguments)


def die_at(step: int, *, folder: str) -> None:
    from t5x_like import paths
    from t5x_like.experiment import reporting

    show = reporting.ProgressLine.__call__

    def show_and_die(self, now, values):
        show(self, now, values)
        if now == step:
            while not paths.path(folder).exists():
                time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)

    reporting.ProgressLine.__call__ = show_and_die


if __name__ == "__main__":
    sys.meta_path[:] = map(WithoutThem, sys.meta_path)
    from t5x_like.__main__ import main

    if "KILLED_AT" in os.environ:
        die_at(int(os.environ["KILLED_AT"]), folder=os.environ["KILLED_AFTER"])
    main()
