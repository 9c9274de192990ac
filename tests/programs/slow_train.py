"""Trains from a file of settings, slowly until the run is started again: time to disturb it in."""

import os
import pathlib
import sys
import time

from t5x_like import config, train
from t5x_like.config import parse
from t5x_like.experiment import reporting


def main(path: str, seconds: float) -> None:
    """Train; before Slurm has started the job again, let each step take so many seconds more."""
    if "SLURM_RESTART_COUNT" not in os.environ:
        show = reporting.ProgressLine.__call__

        def delay(self, step, values):
            show(self, step, values)
            time.sleep(seconds)

        reporting.ProgressLine.__call__ = delay
    train.main(parse(config.load(pathlib.Path(path))))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
