"""Choose the best checkpoint of a run by a metric, to keep it beside the newest checkpoints."""

import json
import math
from collections.abc import Sequence
from typing import Any

import jax
from etils import epath

from t5x_like import paths
from t5x_like.checkpoints.reading import BEST, CheckpointError, read_best
from t5x_like.processes import from_first_process


class BestCheckpoint:
    """The values of a metric in the evaluations so far, stored beside the checkpoints.

    The file `best.json` has the metric's name, the best step, and the value at each step that was
    evaluated; a resumed run continues with it.

    Args:
        folder: the folder of the checkpoints.
        number: the name of the metric in the evaluations.
        smaller_is_better: whether smaller values are better, as for a loss.
        patience: evaluations without a better value after which training stops; 0 for never.

    Raises:
        CheckpointError: the folder has the values of another metric.
    """

    def __init__(
        self, folder: epath.PathLike, *, number: str, smaller_is_better: bool, patience: int = 0
    ):
        self._path = paths.absolute(folder) / BEST
        self.number, self._smaller, self._patience = number, smaller_is_better, patience
        self.values: dict[int, float] = {}
        if stored := from_first_process(self._stored):
            if stored["number"] != number:
                raise CheckpointError(
                    f"checkpoint.best={number!r}: {self._path} has values of "
                    f"{stored['number']!r}; keep that number, or delete the file"
                )
            self.values = {
                int(step): math.nan if value is None else value
                for step, value in stored["values"].items()
            }

    def _stored(self) -> dict[str, Any] | None:
        """Return the content of the file, or None if it does not exist."""
        return read_best(self._path.parent) if self._path.exists() else None

    @property
    def step(self) -> int | None:
        """The step with the best value (the first, if several are equal); None without a value."""
        sign = 1 if self._smaller else -1
        known = {step: sign * value for step, value in self.values.items() if value == value}
        return min(known, key=lambda step: (known[step], step)) if known else None

    @property
    def exhausted(self) -> bool:
        """Whether the metric has not improved for `patience` evaluations."""
        if not self._patience or self.step is None:
            return False
        return sum(step > self.step for step in self.values) >= self._patience

    def resume_at(self, step: int | None) -> None:
        """Forget the values after the step that a run resumes from; None forgets all values."""
        self.values = {
            evaluated: value for evaluated, value in self.values.items() if evaluated <= (step or 0)
        }

    def add(self, step: int, value: float) -> None:
        """Add the value at an evaluated step, whose checkpoint is on disk; NaN is never best."""
        self.values[step] = float(value)
        if jax.process_index() != 0:
            return
        stored: dict[str, Any] = {
            "number": self.number,
            "step": self.step,
            "values": {
                str(evaluated): metric if math.isfinite(metric) else None
                for evaluated, metric in self.values.items()
            },
        }
        paths.write_whole(self._path, json.dumps(stored, indent=2) + "\n")

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Return for each checkpoint whether it is the best: an Orbax preservation policy."""
        del context
        return [checkpoint.step == self.step for checkpoint in checkpoints]
