"""Evaluation during training: the held-out loss, scheduled measures, the best checkpoint."""

import functools
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeGuard

import jax

from t5x_like import paths, processes
from t5x_like.checkpoints import BestCheckpoint, Checkpoints
from t5x_like.checkpoints.reading import BEST
from t5x_like.evaluation import measures, reported_metrics
from t5x_like.evaluation.measure import Measure, MeasureError, RowMeasure
from t5x_like.evaluation.resources import DryRunResources, MeasureResources
from t5x_like.experiment import reporting
from t5x_like.experiment.command_line import writing
from t5x_like.experiment.data_side import TaskData
from t5x_like.experiment.model_side import TaskProgram
from t5x_like.experiment.run import Phase, Run
from t5x_like.inference import predictions
from t5x_like.names import choose
from t5x_like.training.loop import Outcome
from t5x_like.training.several_tasks import TaskBatches
from t5x_like.training.step import TrainState

LOSS = "loss"
EPOCHS = "epochs/"  # prefix of the epochs read of each source


class EvaluationPlan:
    """When a run takes which measures.

    The held-out loss is measured every `evaluate.every` steps, other measures at multiples of their
    `every`, and at the last step all that have a positive `every`.

    Args:
        run: the run.

    Raises:
        ValueError: a measure does not exist or does not fit the model; its `every` or
            `checkpoint.best` does not fit the steps between evaluations and checkpoints.
    """

    def __init__(self, run: Run):
        self._parts, self._settings = run.parts, run.settings
        self.averages = dict(run.settings.evaluate.averages)
        self.measures: dict[str, dict[str, Measure]] = {}  # by the task in the metrics' names
        for part in run.parts:
            for task, data_task in part.evaluated.items():
                chosen = measures.of_part(part, data_task=data_task)
                self.measures[task] = {LOSS: chosen.get(LOSS, measures.MEASURES[LOSS]())} | {
                    name: measure
                    for name, measure in chosen.items()
                    if isinstance(measure, RowMeasure) and self._checked(name, measure)
                }

    def _checked(self, name: str, measure: RowMeasure) -> int:
        every, between = measure.every, self._settings.evaluate.every
        if every < 0 or (every and (not between or every % between)):
            raise ValueError(
                f"evaluate.measures.{name}.every={every} must be a multiple of "
                f"evaluate.every={between}"
            )
        return every

    def due(self, measure: Measure, *, step: int) -> bool:
        """Return whether a measure is due at a step at which the run evaluates."""
        every = measure.every if isinstance(measure, RowMeasure) else 1
        return bool(every) and (step % every == 0 or step == self._settings.train.steps)

    def falls_in(self, phase: Phase, measure: RowMeasure) -> bool:
        """Return whether a measure is due at a step of a phase."""
        every = measure.every
        return every > 0 and (
            phase.last // every > phase.first // every or self.ends_at(phase.last)
        )

    def best(self, folder: Any) -> BestCheckpoint | None:
        """Return the tracker of the best checkpoint; None if the config does not ask for it.

        Raises:
            ValueError: `checkpoint.best` or an average names no number of the evaluations;
                `checkpoint.best` is measured at steps without a checkpoint; or `train.patience` is
                set without it.
        """
        table = reported_metrics.directions(self.measures, self.averages)
        name, patience = self._settings.checkpoint.best, self._settings.train.patience
        if patience < 0 or (patience and not name):
            raise ValueError(
                f"train.patience={patience} must be 0 or more, and needs checkpoint.best, the "
                "number that has to get better"
            )
        if not name:
            return None
        smaller = reported_metrics.direction(name, table, setting="checkpoint.best")
        every, saved = self._between(name), self._settings.checkpoint.every
        if not every or not saved or every % saved:
            raise ValueError(
                f"checkpoint.best={name!r} is measured every {every} steps, which must be a "
                f"multiple of checkpoint.every={saved}, and not 0: each candidate is a checkpoint"
            )
        return BestCheckpoint(folder, number=name, smaller_is_better=smaller, patience=patience)

    def _between(self, name: str) -> int:
        """Return the steps between two values of a number; 0 if it is measured only at the end."""
        average = name.partition("/")[0]
        if average in self.averages:
            parts = map(reported_metrics.listed, self.averages[average].values())
            return math.lcm(*(self._between(number) for names in parts for number in names))
        for task, task_measures in self.measures.items():
            for key, measure in task_measures.items():
                prefix = f"{task}/{key}/"
                if key != LOSS and isinstance(measure, RowMeasure) and name.startswith(prefix):
                    return measure.every
        return self._settings.evaluate.every

    def check_losses(self, losses: Callable[[], Mapping[str, Collection[str]]]) -> None:
        """Check that the numbers of held-out losses which settings name exist.

        Args:
            losses: returns {task of the run: metrics of its loss}; called if there are such names.

        Raises:
            ValueError: no loss has a metric of this name.
        """
        measured = {
            f"{task}/{key}/"
            for task, task_measures in self.measures.items()
            for key in task_measures
        }
        others = (*measured, *(f"{average}/" for average in self.averages))
        named = [(setting, name) for setting, name in self._named() if not name.startswith(others)]
        if named:
            metrics = losses()
            known = {
                f"{task}/{number}": True
                for part in self._parts
                for task in part.evaluated
                for number in metrics[part.name]
            }
            for setting, name in named:
                choose(setting, name, known)

    def _named(self) -> Iterator[tuple[str, str]]:
        """Yield the settings that name numbers of the evaluations, each with a number."""
        if self._settings.checkpoint.best:
            yield "checkpoint.best", self._settings.checkpoint.best
        for average, parts in self.averages.items():
            for part, names in parts.items():
                for name in reported_metrics.listed(names):
                    yield f"evaluate.averages.{average}.{part}", name

    def check_is_measured(self, name: str) -> None:
        """Check that a number is in the log of the last step, as far as the config decides it.

        Args:
            name: TASK/NUMBER, or AVERAGE/average.

        Raises:
            ValueError: the run evaluates no such task, has no such average, or does not take the
                measure of this number.
        """
        averages = [f"{average}/{reported_metrics.AVERAGE}" for average in self.averages]
        if name in averages:
            return
        known = {*measures.MEASURES, *self._settings.evaluate.measures}
        for task, task_measures in self.measures.items():
            if name.startswith(f"{task}/"):
                key = name.removeprefix(f"{task}/").partition("/")[0]
                if key in known and key not in task_measures:
                    raise ValueError(
                        f"{name!r} is not measured: evaluate.measures.{key}.every must be above 0, "
                        "for example train.steps, to measure at the end"
                    )
                return
        known_numbers = ", ".join([f"{task}/..." for task in self.measures] + averages)
        raise ValueError(f"{name!r} is not a number of this run, which measures {known_numbers}")

    def ends_at(self, step: int) -> bool:
        """Return whether the run ends at a step."""
        return step == self._settings.train.steps

    def has_logged(self, step: int) -> bool:
        """Return whether the run's log has an evaluation at a step; call it on all processes."""
        folder = paths.path(self._settings.workdir)

        def has() -> bool:
            log = reporting.read_log(folder) if (folder / reporting.LOG).is_file() else {}
            return any(step in log[name] for name in log if not name.startswith("train/"))

        return processes.from_first_process(has)

    def has(self, name: str, *, step: int) -> bool:
        """Return whether a number is measured at a step."""
        every = self._between(name)
        return step > 0 and (step % every == 0 or step == self._settings.train.steps)


def generates(run: Run) -> bool:
    """Return whether a run generates texts during training, without loading the data module.

    A benchmark's measure, which only the data module knows, is assumed to generate if the model
    predicts text.

    Raises:
        ValueError: see `measures.make`.
    """
    for part in run.parts:
        for name, settings in part.evaluate.measures.items():
            if not isinstance(settings, dict) or not settings.get("every"):
                continue
            if settings.get("kind", name) == measures.BENCHMARK:
                if part.task.prediction == predictions.TEXT:
                    return True
            elif measures.make(name, settings, task=part.task).generates:
                return True
    return False


class BestSoFar:
    """Records the numbers of each evaluation, and decides whether training stops early.

    Args:
        best: the values so far; None for a run that does not select a checkpoint.
        plan: when the run evaluates.
        saver: writes the checkpoints.
        step: the step at which the run starts or resumes.
    """

    def __init__(
        self, best: BestCheckpoint | None, plan: EvaluationPlan, saver: Checkpoints, *, step: int
    ):
        self._best, self.plan, self._saver = best, plan, saver
        self.resume_at(step)

    def resume_at(self, step: int) -> None:
        """Forget the values after the step from which the run continues."""
        if self._best is not None:
            self._best.resume_at(step)

    @property
    def stops(self) -> bool:
        """Whether the metric has not improved for `train.patience` evaluations."""
        return self._best is not None and self._best.exhausted

    def is_unfinished(self, outcome: Outcome, phase: Phase) -> bool:
        """Return whether a phase still has steps to take, or an evaluation of its last step."""
        if outcome.interrupted or outcome.stopped:
            return False
        return int(outcome.state.step) < phase.last or self.lacks_evaluation(outcome.state, phase)

    def lacks_evaluation(self, state: TrainState, phase: Phase) -> bool:
        """Return whether a resumed run lacks the evaluation of its state, within this phase."""
        step = int(state.step)
        if not phase.first < step <= phase.last:
            return False
        if self._best is None:
            return self.plan.ends_at(step) and not self.plan.has_logged(step)
        return step not in self._best.values and self.plan.has(self._best.number, step=step)

    def __call__(self, step: int, values: Mapping[str, Any]) -> bool:
        """Record the numbers of an evaluation, and return whether training stops."""
        if self._best is None or not self.plan.has(self._best.number, step=step):
            return False
        self._saver.wait()  # write the checkpoint before recording it as the best
        with writing(self._saver.folder / BEST):
            # Without a value if it counted nothing, see `metrics.compute`.
            self._best.add(step, values.get(self._best.number, math.nan))
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


def dry_run(
    plan: EvaluationPlan,
    models: Mapping[str, TaskProgram],
    data: Mapping[str, TaskData],
    phase: Phase,
) -> None:
    """Take a phase's measures of texts on a few rows, with models that compute nothing.

    So settings that do not fit the rows or the network end a run before it trains.

    Raises:
        ValueError: a measure cannot read the rows, or the network neither scores nor generates.
    """
    for name, inputs in data.items():
        pretrained = models[name].pretrained(None).policy()
        dry = DryRunResources(pretrained, inputs.part, make=lambda: models)
        for task, data_task in inputs.part.evaluated.items():
            for key, measure in plan.measures[task].items():
                if _reads_texts(measure) and plan.falls_in(phase, measure):
                    try:
                        measure.measure(*dry.of(measure, data_task))
                    except ValueError as error:
                        raise ValueError(f"evaluate.measures.{key}: {error}") from error


class Evaluator:
    """Computes the evaluation at a train state's step: {TASK/NUMBER: value}.

    The result also has the epochs read of each source of the training data, as EPOCHS + its name.
    Nothing is compiled before the first evaluation.

    Args:
        plan: see `EvaluationPlan`.
        models: the models, by task of the run.
        data: the data of a phase, by task.
        batches: the training batches.
    """

    def __init__(
        self,
        plan: EvaluationPlan,
        *,
        models: Mapping[str, TaskProgram],
        data: Mapping[str, TaskData],
        batches: TaskBatches,
    ):
        self._plan, self._models, self._data = plan, models, data
        self._batches = batches
        self._pretrained = functools.cache(lambda name: models[name].pretrained(None).policy())
        self._resources = functools.cache(self._make_resources)

    def __call__(self, state: TrainState) -> dict[str, Any]:
        """Return the numbers, and arrays for networks with experts.

        Raises:
            MeasureError: see there.
        """
        step = int(state.step)
        results: dict[str, dict[str, Any]] = {}
        for name, inputs in self._data.items():
            for task, data_task in inputs.part.evaluated.items():
                batches = inputs.eval_batches(data_task)
                results[task] = self._models[name].measure(state.params, batches)
                results[task] |= self._measured(name, task, state, step=step)
        due = {
            average: parts
            for average, parts in self._plan.averages.items()
            if self._has(results, parts)
        }
        results |= reported_metrics.averages(results, due)
        return self._epochs(step) | {
            f"{task}/{key}": value
            for task, numbers in results.items()
            for key, value in numbers.items()
        }

    def _epochs(self, step: int) -> dict[str, float]:
        counts = self._batches.counts(step=step)
        by_source: dict[str, float] = {}
        for name, inputs in self._data.items():
            prefix = f"{EPOCHS}{name}/" if name else EPOCHS
            epochs = inputs.epochs(batches=counts[name])
            by_source |= {f"{prefix}{source}": value for source, value in epochs.items()}
        return by_source

    def _measured(self, name: str, task: str, state: TrainState, *, step: int) -> dict[str, float]:
        measured: dict[str, float] = {}
        data_task = self._data[name].part.evaluated[task]
        for key, measure in self._plan.measures[task].items():
            if isinstance(measure, RowMeasure) and self._plan.due(measure, step=step):
                model = self._models[name]
                params = model.policy(model.read_by_network(state.params))
                self._pretrained(name).params = params
                try:
                    needed = self._resources(name).of(measure, data_task)
                    numbers, _ = measure.measure(*needed)
                except ValueError as error:  # of a later row than `dry_run` has read
                    raise MeasureError(f"evaluate.measures.{key}: {error}") from error
                measured |= reported_metrics.numbers(key, numbers)
                self._pretrained(name).free()  # the training step needs the memory of the copy
        return measured

    def _make_resources(self, name: str) -> MeasureResources:
        part = self._data[name].part
        return MeasureResources(self._pretrained(name), part, make=lambda: self._models)

    def _has(self, results: Mapping[str, Mapping[str, Any]], parts: Mapping[str, Any]) -> bool:
        flat = {f"{task}/{key}" for task, numbers in results.items() for key in numbers}
        return all(set(reported_metrics.listed(names)) <= flat for names in parts.values())


def _reads_texts(measure: Measure) -> TypeGuard[RowMeasure]:
    """Return whether a measure scores or generates texts."""
    return isinstance(measure, RowMeasure) and "text_model" in measure.needs
