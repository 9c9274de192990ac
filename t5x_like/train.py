r"""Train a model as a config describes, or resume an earlier run of the same workdir.

    python -m t5x_like.train --config=configs/t5.py:small --config.workdir=runs/small \
        --config.train.steps=1000 --config.mesh.model=2

On several machines start the same command on each, with JAX_NUM_PROCESSES=auto on Cloud TPU, GKE
and Slurm, and elsewhere with JAX_NUM_PROCESSES, JAX_PROCESS_ID and JAX_COORDINATOR_ADDRESS. SIGTERM
or Ctrl-C saves and stops; the same command resumes the run from there.

The workdir then contains checkpoints/, config.json, metrics.jsonl, tensorboard/ and loss.png
(docs/checkpoints.md).
"""

if __name__ == "__main__":
    from t5x_like.experiment import command_line

    SETTINGS = command_line.start(__doc__, several_processes=True)

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from t5x_like import config, partitioning, paths, processes
from t5x_like.batches.sharded_batches import NoExampleError
from t5x_like.checkpoints import BestCheckpoint, Checkpoints, CheckpointWriteError, DataState
from t5x_like.config import RunSettings, one_line_errors
from t5x_like.config.run_settings import TrainSettings
from t5x_like.evaluation import run_report
from t5x_like.evaluation.measure import MeasureError
from t5x_like.evaluation.training_evaluation import BestSoFar, EvaluationPlan, Evaluator, dry_run
from t5x_like.experiment import (
    command_line,
    completion,
    data_side,
    fingerprints,
    model_side,
    recurrent_state,
    reporting,
    run_folder,
    startup,
    terminal,
    trackers,
)
from t5x_like.experiment.command_line import WriteError
from t5x_like.experiment.data_side import TaskData
from t5x_like.experiment.model_side import TaskProgram
from t5x_like.experiment.recurrent_state import Data, Models
from t5x_like.experiment.reporting import TensorBoardWriter, Writers
from t5x_like.experiment.run import Part, Phase, Run
from t5x_like.experiment.run_folder import LockedError, WorkdirLock
from t5x_like.reading import FileError
from t5x_like.training import flops
from t5x_like.training.loop import Log, NonFiniteError, Outcome, StepCost, fit
from t5x_like.training.profile import Profile
from t5x_like.training.several_tasks import TaskBatches, shuffled_task_at, task_at
from t5x_like.training.step import TrainState
from t5x_like.training.watchdog import Watchdog

# Errors that end a started run with one line instead of a traceback.
_ENDING_A_RUN = (
    CheckpointWriteError,
    WriteError,
    LockedError,
    NoExampleError,
    FileError,
    MeasureError,
)

# How often one process returns to a checkpoint to leave out data (`train.on_nonfinite`).
_MAX_REWINDS = 10


@processes.ending_together()
@command_line.memory_errors()
def main(settings: RunSettings) -> None:
    """Complete the settings and train; a mistake prints one line and exits with status 2."""
    partitioning.connect_processes()
    with one_line_errors():
        run = completion.complete(Run(settings))
    train(run)


def train(run: Run) -> None:
    """Train to the run's `train.steps`, from the newest checkpoint if there is one."""
    with one_line_errors():
        workdir = run_folder.find(run.settings)
        lock = WorkdirLock(workdir, report=functools.partial(print, flush=True))
        for check in (lock.refuse_if_alive, lambda: trackers.check(run.settings, workdir)):
            processes.on_first_process(check)
        stored = run_folder.stored(workdir, run)
        models = model_side.build_tasks(run)
        first = next(iter(models.values()))
        # Before the data are opened, which can take minutes.
        first.check_start(None if stored is None else workdir / "checkpoints")
        data = [_data(phase, first.mesh, stored) for phase in run.phases]
        plan = EvaluationPlan(run)
        best = plan.best(workdir / "checkpoints")
    with first.layout(), contextlib.ExitStack() as opened, terminal.LINE.clearing():
        with one_line_errors():
            costs, carry = _traced(models, run.phases, data)
            _check_measures(plan, models, run.phases, data)
            phases = list(zip(run.phases, data, costs, strict=True))
            prints = processes.on_first_process(lambda: _fingerprints(run.settings, phases, stored))
            processes.on_first_process(lambda: opened.enter_context(lock))
            saver = opened.enter_context(_saver(run, lock, data[0], prints, best))
            restore = functools.partial(_restore, first, carry, saver)
            state, position = restore()
            writer = opened.enter_context(contextlib.closing(open_writer(run.settings, workdir)))
        training = _Training(
            settings=run.settings,
            models=models,
            phases=phases,
            writer=writer,
            saver=saver,
            so_far=BestSoFar(best, plan, saver, step=int(state.step)),
            restore=restore,
            begin=functools.partial(_begin, run.settings, workdir, stored),
        )
        with one_line_errors(NonFiniteError, status=NonFiniteError.STATUS):
            outcome = training.all_phases(state, position)
    with one_line_errors(WriteError, FileError):
        run_report.write(outcome, workdir, data[-1], cost=run.settings.cost)
    if not outcome.interrupted:
        training.so_far.report()


def _saver(
    run: Run,
    lock: WorkdirLock,
    data: Data,
    prints: dict[str, Any] | None,
    best: BestCheckpoint | None,
) -> Checkpoints:
    settings = run.settings
    shards = next(iter(data.values())).shards  # the same for all tasks
    metadata = {"data_shards": shards, "fingerprints": prints, "labels": completion.labels(run)}
    return Checkpoints(
        paths.path(settings.workdir) / "checkpoints",
        every=settings.checkpoint.every,
        keep=settings.checkpoint.keep,
        keep_every=settings.checkpoint.keep_every or None,
        metadata={"config": config.to_dict(settings), **metadata, **completion.origin(run)},
        best=best,
        may_write=lock.check,
    )


def _fingerprints(
    settings: RunSettings,
    phases: Sequence[tuple[Phase, Data, Any]],
    stored: run_folder.Stored | None,
) -> dict[str, Any]:
    """Return the fingerprints of a run, after comparing them with its checkpoint's."""
    models = (settings.initialize, settings.data.vocabulary)
    current = fingerprints.of_run([(phase, data) for phase, data, _ in phases], models=models)
    if stored is not None:
        for line in fingerprints.compare(
            stored.fingerprints,
            current,
            vocabulary=settings.data.vocabulary,
            allow_changed=settings.data.allow_changed,
        ):
            print(line, flush=True)
        # A run that resumes reads its parameters from the checkpoint, not from the hub.
        current["hub"] = {**stored.fingerprints.get("hub", {}), **current["hub"]}
    return current


def open_writer(settings: RunSettings, workdir: pathlib.Path) -> Writers:
    """Return the metric writers of a run; processes other than the first have none.

    Raises:
        LoginError: the user is not logged in at one of `train.trackers`.
    """
    if jax.process_index() != 0:
        return Writers([], workdir)
    others = trackers.open_writers(settings, workdir)
    writers: list[reporting.ClosingWriter] = [
        TensorBoardWriter(workdir / "tensorboard"),
        reporting.JsonLinesWriter(workdir / reporting.LOG),
        *others,
        reporting.EvaluationLines(),
    ]
    return Writers(writers, workdir)


def _data(phase: Phase, mesh: Mesh, stored: run_folder.Stored | None) -> dict[str, TaskData]:
    """Build the data of each task in a phase."""
    shards = None if stored is None else stored.shards
    for part in phase.parts:
        partitioning.check_batch(part.data.batch_size, mesh.shape)
    return {
        part.name: data_side.build(part, mesh, shards=shards, phase=phase.reading)
        for part in phase.parts
    }


def _traced(
    models: Models, phases: Sequence[Phase], data: Sequence[Data]
) -> tuple[list[dict[str, StepCost]], Any]:
    """Return the cost of a step, for each phase and task, and the shapes of the memory.

    All phases are traced before training, so that a shape error in a later phase is found now.
    Notes about the data are printed.

    Raises:
        ValueError: see `recurrent_state.check` and `recurrent_state.check_data`.
    """
    costs = [
        {name: _step_cost(model, phase_data[name]) for name, model in models.items()}
        for phase_data in data
    ]
    carries = [recurrent_state.abstract(models, phase_data) for phase_data in data]
    recurrent_state.check(carries, phases)
    recurrent_state.check_data(models, data)
    _print_notes(data)
    return costs, carries[0]


def _print_notes(data: Sequence[Data]) -> None:
    """Print what `Inputs.notes` finds, each line once."""
    lines = [
        line for phase_data in data for inputs in phase_data.values() for line in inputs.notes()
    ]
    if jax.process_index() == 0:
        for line in dict.fromkeys(lines):
            print(f"note: {line}", flush=True)


def _check_measures(
    plan: EvaluationPlan, models: Models, phases: Sequence[Phase], data: Sequence[Data]
) -> None:
    """Check that the measures fit rows and models, and that the numbers in settings exist.

    Raises:
        ValueError: see `dry_run` and `EvaluationPlan.check_losses`.
    """
    plan.check_losses(
        lambda: {
            name: model.metric_names(data[0][name].batch_shapes()) for name, model in models.items()
        }
    )
    for phase, of_phase in zip(phases, data, strict=True):
        dry_run(plan, models, of_phase, phase)


def _restore(
    model: TaskProgram, carry: Any, saver: Checkpoints
) -> tuple[TrainState, DataState | None]:
    """Return the train state to start or resume from, and the data position (None at a start).

    A run that continues from the step of a T5X checkpoint counts as a start.
    """
    restored = saver.restore_latest(model.abstract_state.replace(carry=carry))
    if restored is None:
        return model.initial_state(), None
    state, position = restored
    if jax.process_index() == 0:
        step, last = int(state.step), model.run.settings.train.steps
        print(f"going on from step {step} in {saver.folder}", flush=True)
        if step >= last:
            print(f"train.steps={last}, and the run has taken {step}: no step is left", flush=True)
    return state, position


def _begin(
    settings: RunSettings,
    workdir: pathlib.Path,
    stored: run_folder.Stored | None,
    step: int,
) -> None:
    """Write the config of a run that starts or resumes, and print the settings that changed."""
    if jax.process_index() != 0:
        return
    if library := startup.tcmalloc_in_use():
        print(f"memory is allocated by {library}", flush=True)
    if stored is not None:
        for line in run_folder.changed_settings(stored.config, config.to_dict(settings)):
            print(f"changed since step {stored.step}: {line}", flush=True)
    run_folder.write_config(settings, workdir, step=step)


@dataclasses.dataclass
class _Training:
    """The training loop of a run, after its settings, data and checkpoints have been checked.

    Attributes:
        settings: the run's settings.
        models: the model of each task.
        phases: (phase, its data, the cost of a step), the last two as {task: ...}.
        restore: returns the state and data position of the newest checkpoint, or the initial state.
        begin: called once with the step at which the run starts or resumes, when the data is open.
    """

    settings: RunSettings
    models: Models
    phases: Sequence[tuple[Phase, Data, dict[str, StepCost]]]
    writer: Writers
    saver: Checkpoints
    so_far: BestSoFar
    restore: Callable[[], tuple[TrainState, DataState | None]]
    begin: Callable[[int], None]
    begun: bool = False

    def all_phases(self, state: TrainState, position: DataState | None) -> Outcome:
        """Train through the remaining steps of all phases, from a position in the data.

        Raises:
            NonFiniteError: a loss or gradient is not finite, and `train.on_nonfinite` does not
                allow leaving out its data, or data was left out too often.
        """
        skipped: dict[int, int] = {}  # {step of a checkpoint: batches left out after it}
        for attempt in range(_MAX_REWINDS + 1):
            start = int(state.step)
            try:
                return self._all_phases(state, position, skip=skipped.get(start, 0))
            except NonFiniteError as error:
                skips = self.settings.train.on_nonfinite == "skip_data"
                if not skips or attempt == _MAX_REWINDS:
                    raise
                problem, bad = str(error), error.step
            del state  # not in the handler: its error keeps the failed step's state alive
            for _, data, _ in self.phases:
                for inputs in data.values():
                    inputs.stop_reading()
            state, position = self.restore()
            start = int(state.step)
            skipped[start] = skipped.get(start, 0) + bad - start
            self.so_far.resume_at(start)
            if jax.process_index() == 0:
                print(f"{problem} Going on without {skipped[start]} batches", flush=True)
        raise AssertionError("the last attempt returns or raises")

    def _all_phases(self, state: TrainState, position: DataState | None, *, skip: int) -> Outcome:
        outcome = Outcome(state, interrupted=False, stopped=self.so_far.stops)
        for phase, data, costs in self.phases:
            if self.so_far.is_unfinished(outcome, phase):
                state, batches = self._open(outcome.state, phase, data, position)
                batches.skip(skip)
                skip = 0
                outcome = self._fit(state, phase, data, costs, batches)
                if phase.last < self.settings.train.steps:  # a later phase may continue from here
                    position = dict(batches.state() or {})
                    for inputs in data.values():
                        inputs.stop_reading()
        return outcome

    def _open(
        self, state: TrainState, phase: Phase, data: Data, position: DataState | None
    ) -> tuple[TrainState, TaskBatches]:
        """Return the train state and the batches with which a phase starts or resumes."""
        with one_line_errors():
            batches = _batches(
                phase.parts, data, step=int(state.step), seed=self.settings.train.seed
            )
            begins = state.step == phase.first and phase.reading == phase.name
            if position is not None and not begins:
                batches.restore(position)
            else:  # the data restarts, and with it the memory
                state = state.replace(carry=recurrent_state.initial(self.models, data))
            if not self.begun:
                self.begun = True
                self.begin(int(state.step))
        return state, batches

    def _fit(
        self,
        state: TrainState,
        phase: Phase,
        data: Data,
        costs: dict[str, StepCost],
        batches: TaskBatches,
    ) -> Outcome:
        """Train through the remaining steps of a phase, which may have batches of other shapes."""
        first, settings = next(iter(self.models.values())), self.settings
        if phase.name and jax.process_index() == 0:
            print(
                f"\nphase {phase.name!r}: steps {int(state.step) + 1} to {phase.last}", flush=True
            )
        with one_line_errors(*_ENDING_A_RUN):
            return fit(
                state,
                train_steps={name: model.train_step for name, model in self.models.items()},
                batches=batches,
                put=first.put,
                steps=phase.last,
                log=_log(settings.train, phase.name, costs, self.writer),
                checkpoints=self.saver,
                evaluate=Evaluator(
                    self.so_far.plan, models=self.models, data=data, batches=batches
                ),
                evaluate_every=settings.evaluate.every,
                evaluate_first=self.so_far.lacks_evaluation(state, phase),
                stop_after=self.so_far,
                watchdog=Watchdog(settings.train.step_timeout, settings.train.pause_timeout),
                profile=Profile(
                    settings.train.profile_at,
                    settings.train.profile_steps,
                    f"{settings.workdir}/profile",
                ),
            )


def _batches(parts: Sequence[Part], data: Data, *, step: int, seed: int) -> TaskBatches:
    """Return the iterator over the batches of all tasks, starting at `step`."""
    return TaskBatches(
        {name: inputs.train_batches for name, inputs in data.items()},
        choose=choose_by_step(parts, seed=seed),
        step=step,
    )


def choose_by_step(parts: Sequence[Part], *, seed: int) -> Callable[[int], str]:
    """Return the function from a step to its task, drawn by share or in shuffled epochs."""
    batches = {part.name: part.batches for part in parts if isinstance(part.batches, int)}
    if batches:
        return functools.partial(shuffled_task_at, batches=batches, seed=seed)
    shares = {part.name: part.share for part in parts}
    return functools.partial(task_at, shares=shares, seed=seed)


def _log(train: TrainSettings, phase: str, cost: dict[str, StepCost], writer: Writers) -> Log:
    """Return the log of a phase."""
    return Log(
        writer,
        every=train.log_every,
        cost=cost,
        hooks=[reporting.ProgressLine(steps=train.steps, tasks=list(cost), phase=phase)],
    )


def _step_cost(model: TaskProgram, data: TaskData) -> StepCost:
    """Count tokens, examples and FLOPs of a step from the shapes of a batch."""
    shapes = data.batch_shapes()
    peak = flops.peak_flops(jax.devices()[0], model.part.model.get("dtype", "float32"))
    examples = data.part.data.batch_size
    tokens = sum(
        examples * rows.size // rows.shape[0]
        for name, rows in shapes.items()
        if name.endswith("input_tokens")
    )
    return StepCost(
        tokens=tokens,
        examples=examples,
        flops=model.flops(shapes),
        peak_flops=None if peak is None else peak * jax.device_count(),
    )


if __name__ == "__main__":
    main(SETTINGS)
