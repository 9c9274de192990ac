"""Selection of the best checkpoint during training, and early stopping."""

import sys
from collections.abc import Mapping
from typing import Any

import jax

from t5x_like.checkpoints import BestCheckpoint, Checkpoints
from t5x_like.checkpoints.reading import BEST
from t5x_like.evaluation.while_training import Schedule
from t5x_like.experiment.command_line import writing
from t5x_like.experiment.run import Phase
from t5x_like.training.loop import Outcome
from t5x_like.training.state import TrainState


class BestSoFar:
    """Records the numbers of each evaluation, and decides whether training stops early.

    Args:
        best: the values so far; None for a run that does not select a checkpoint.
        schedule: the schedule of the evaluations.
        saver: writes the checkpoints.
        step: the step at which the run starts or resumes.
    """

    def __init__(
        self, best: BestCheckpoint | None, schedule: Schedule, saver: Checkpoints, *, step: int
    ):
        self._best, self.schedule, self._saver = best, schedule, saver
        self.resume_at(step)

    def resume_at(self, step: int) -> None:
        """Forget the values after the step from which the run continues."""
        if self._best is not None:
            self._best.resume_at(step)

    @property
    def stops(self) -> bool:
        """Whether the metric has not improved for `train.patience` evaluations."""
        return self._best is not None and self._best.exhausted

    def remains(self, outcome: Outcome, phase: Phase) -> bool:
        """Return whether a phase still has steps to take, or an evaluation of its last step."""
        if outcome.interrupted or outcome.stopped:
            return False
        return int(outcome.state.step) < phase.last or self.awaits(outcome.state, phase)

    def awaits(self, state: TrainState, phase: Phase) -> bool:
        """Return whether a resumed run lacks the evaluation of its state, within this phase."""
        step = int(state.step)
        if not phase.first < step <= phase.last:
            return False
        if self._best is None:
            return self.schedule.ends_at(step) and not self.schedule.has_logged(step)
        return step not in self._best.values and self.schedule.has(self._best.number, step=step)

    def __call__(self, step: int, values: Mapping[str, Any]) -> bool:
        """Record the numbers of an evaluation, and return whether training stops."""
        if self._best is None or self._best.number not in values:
            return False
        self._saver.wait()  # write the checkpoint before recording it as the best
        with writing(self._saver.folder / BEST):
            self._best.add(step, values[self._best.number])
        return self._best.exhausted

    def report(self) -> None:
        """Print the best checkpoint, and why training ended early if it did."""
        if self._best is None or self._best.step is None or jax.process_index() != 0:
            return
        step, number = self._best.step, self._best.number
        if self._best.exhausted:
            sys.stdout.write(f"stopped early: no better {number} since step {step}\n")
        value = self._best.values[step]
        path = self._saver.folder / str(step)
        sys.stdout.write(f"best checkpoint: {number} {value:.4f} at step {step}, {path}\n")
