"""Shapes of a config's batches, from its converter, without data or a vocabulary."""

import dataclasses

import jax

from t5x_like.batches import converters
from t5x_like.batches.conversion import Converter
from t5x_like.config.run_settings import DataSettings
from t5x_like.experiment.data_setup import make_converter
from t5x_like.experiment.run import Part, Run
from t5x_like.names import choose
from t5x_like.objectives import examples_of

BatchShapes = dict[str, jax.ShapeDtypeStruct]


@dataclasses.dataclass(frozen=True)
class PlannedStep:
    """A step of a run.

    Attributes:
        phase: the name of its phase; "" in a run without phases.
        part: the task in this phase.
    """

    phase: str
    part: Part

    @property
    def continues(self) -> bool:
        """Whether rows continue from batch to batch."""
        return _converter(self.part.data).continues

    @property
    def batch(self) -> BatchShapes:
        """The shapes of the global batch."""
        return batch(self.part.data)


def steps(run: Run) -> list[PlannedStep]:
    """Return the steps of all phases and tasks of a run."""
    return [PlannedStep(phase.name, part) for phase in run.phases for part in phase.parts]


def largest(run: Run, *, task: str = "") -> PlannedStep:
    """Return the step of a run whose batch has the most tokens, which needs the most memory.

    Args:
        run: the run.
        task: consider only the steps of this task.

    Raises:
        ValueError: the run has no such task; see also `batch`.
    """
    planned = steps(run)
    if task:
        names = [step.part.name for step in planned]
        choose("--task", task, dict.fromkeys(names) if names[0] else {})
        planned = [step for step in planned if step.part.name == task]
    return max(planned, key=lambda step: tokens(step.batch))


def tokens(fields: BatchShapes) -> int:
    """Count the tokens that a step reads, on all sides, as in the log of a run."""
    return sum(x.size for name, x in fields.items() if name.endswith("input_tokens"))


def tokens_of_run(run: Run) -> float:
    """Count the tokens that all steps of a run read; of several tasks, as often as they come."""
    total = 0.0
    for phase in run.phases:
        weights = [_weight(part) for part in phase.parts]
        each = [tokens(batch(part.data)) for part in phase.parts]
        mean = sum(w * n for w, n in zip(weights, each, strict=True)) / sum(weights)
        total += (phase.last - phase.first) * mean
    return total


def _weight(part: Part) -> float:
    """Return the weight of a task; a pass over rows that are not counted yet counts as one."""
    return float(part.batches) if isinstance(part.batches, int) else part.share


def batch(data: DataSettings) -> BatchShapes:
    """Return the shapes of the global batch that these settings give.

    Raises:
        ValueError: the converter or objective does not exist, they do not suit each other, or a
            length is not set.
    """
    examples = examples_of(data.objective, data.objective_settings)
    row = converters.empty_row(
        _converter(data),
        features=examples.features,
        lengths=dict(data.lengths),
        pack=data.pack,
    )
    return {
        name: jax.ShapeDtypeStruct((data.batch_size, *values.shape[1:]), values.dtype)
        for name, values in row.items()
    }


def _converter(data: DataSettings) -> Converter:
    """Build the converter of the data settings, without a vocabulary, for shapes."""
    examples = examples_of(data.objective, data.objective_settings)
    return make_converter(data, examples, vocabulary=None)
