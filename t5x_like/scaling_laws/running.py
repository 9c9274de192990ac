"""Train the runs of a ladder one after the other, each in a separate process."""

import functools
import sys
from collections.abc import Sequence

from t5x_like.experiment import training_processes
from t5x_like.experiment.training_processes import Job
from t5x_like.scaling_laws.ladder import Rung
from t5x_like.scaling_laws.trained import final_loss


def run(rungs: Sequence[Rung]) -> bool:
    """Train the unfinished runs, and print a line for each.

    SIGTERM or Ctrl-C saves the current run and stops; the same call continues from there.

    Returns:
        Whether all runs are finished.

    Raises:
        ValueError: a run failed, or the working folder has no configs/run.py.
    """
    found = {rung.folder: rung for rung in rungs}
    numbers = {folder: number for number, folder in enumerate(found, start=1)}

    def report(job: Job, seconds: float | None) -> None:
        loss = _loss(found[job.folder])
        when = "finished before" if seconds is None else f"{seconds:.0f} s"
        place = f"{numbers[job.folder]}/{len(found)}"
        sys.stdout.write(f"{place} {job.folder.name}: held-out loss {loss:.4f} ({when})\n")
        sys.stdout.flush()

    jobs = [Job(rung.folder, functools.partial(_is_finished, rung)) for rung in rungs]
    return training_processes.train(jobs, report=report)


def _is_finished(rung: Rung) -> bool:
    return _loss(rung) is not None


def _loss(rung: Rung) -> float | None:
    return final_loss(rung.settings, rung.folder)
