"""Trains from a file of settings, and dies of SIGKILL when a step is logged, or within one."""

import functools
import itertools
import os
import pathlib
import signal
import sys

from t5x_like import config, names, train
from t5x_like.config import parse
from t5x_like.experiment import reporting
from t5x_like.experiment.model_side import TaskProgram


def main(path: str, killed_at: int, program: str = "") -> None:
    """Train; with a program of `TaskProgram` die while that runs for the time `killed_at`."""
    if program:
        _die_in(program, killed_at)
    else:
        _die_after(killed_at)
    names.trust_all_code()  # of the test that wrote the settings
    train.main(parse(config.load(pathlib.Path(path))))


def _die_after(step_to_die: int) -> None:
    show = reporting.ProgressLine.__call__

    def die(self, step, values):
        show(self, step, values)
        if step == step_to_die:
            os.kill(os.getpid(), signal.SIGKILL)

    reporting.ProgressLine.__call__ = die


def _die_in(name: str, time_to_die: int) -> None:
    make = vars(TaskProgram)[name].func

    def made(self):
        program, times = make(self), itertools.count(1)

        def run(*arguments):
            # It has only begun when this returns, since programs run beside Python.
            begun = program(*arguments)
            if next(times) == time_to_die:
                os.kill(os.getpid(), signal.SIGKILL)
            return begun

        return run

    mortal = functools.cached_property(made)
    mortal.__set_name__(TaskProgram, name)
    setattr(TaskProgram, name, mortal)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
