r"""Trains what a config describes, and goes on where an earlier run of the same workdir stopped.

    python -m t5x_like.train --config=configs/t5.py:small --config.workdir=runs/small \
        --config.train.steps=1000 --config.mesh.model=2

On several machines start the same command on each, with JAX_NUM_PROCESSES=auto on Cloud TPU, GKE
and Slurm, and elsewhere with JAX_NUM_PROCESSES, JAX_PROCESS_ID and JAX_COORDINATOR_ADDRESS. SIGTERM
or Ctrl-C saves and stops; the same command goes on from there.

In the workdir: checkpoints/, config.json, metrics.jsonl, tensorboard/, loss.png.
"""

import contextlib
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np
from clu.metric_writers import MetricWriter

from t5x_like import checkpoints, config, evaluate, partitioning
from t5x_like.checkpoints import Checkpoints, CheckpointWriteError, DataState
from t5x_like.config import Phase, one_line_errors
from t5x_like.experiment import completion, data_side, model_side, reporting
from t5x_like.experiment.data_side import Inputs
from t5x_like.experiment.model_side import Experiment
from t5x_like.preprocessing import cleaning
from t5x_like.training import flops
from t5x_like.training.loop import Log, Outcome, Work, fit
from t5x_like.training.state import TrainState

_EPOCHS = "epochs/"  # what the metrics of sources begin with


def train(settings: ml_collections.ConfigDict) -> None:
    """Trains to the config's `train.steps`, from the newest checkpoint if there is one."""
    partitioning.connect_processes()
    with one_line_errors():
        settings = completion.complete(settings)
        workdir = _workdir(settings)
        model = model_side.build(settings)
        phases = config.phases(settings)
        parts = _inputs(phases, model=model, shards=_stored_shards(workdir))
        saver = Checkpoints(
            workdir / "checkpoints",
            every=settings.checkpoint.every,
            keep=settings.checkpoint.keep,
            keep_every=settings.checkpoint.keep_every or None,
            metadata={"config": config.to_dict(settings), "data_shards": parts[0].shards},
        )
    writer = reporting.open_writer(workdir)
    with partitioning.layout(model.mesh), saver, contextlib.closing(writer):
        with one_line_errors():
            # All of them now: tracing the model shows what does not fit in a later phase.
            logs = [_log(model, data, writer) for data in parts]
            state, position = _start(model, saver)
        outcome = Outcome(state, interrupted=False)
        for phase, data, log in zip(phases, parts, logs, strict=True):
            if outcome.state.step < phase.last and not outcome.interrupted:
                outcome = _train_phase(
                    outcome.state,
                    model=model,
                    phase=phase,
                    data=data,
                    position=position,
                    log=log,
                    saver=saver,
                )
                if phase.last < settings.train.steps:  # another phase may read on
                    position = data.train_batches.state()
                    data.stop_reading()
    step = int(np.asarray(outcome.state.step))
    if not outcome.interrupted:
        _report(step, workdir, parts[-1])
    elif jax.process_index() == 0:
        print(f"\nstopped and saved at step {step}: the same command goes on from there")


def _workdir(settings: ml_collections.ConfigDict) -> pathlib.Path:
    if not settings.workdir:
        raise ValueError("workdir is not set: --config.workdir=FOLDER")
    if "://" in settings.workdir:  # as a path it would be a folder of this machine named "gs:"
        raise ValueError(
            f"workdir={settings.workdir!r} is no folder: mount the bucket and name a folder of it "
            "(docs/launching.md)"
        )
    workdir = pathlib.Path(settings.workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    if jax.process_index() == 0:
        text = json.dumps(config.to_dict(settings), indent=2)
        (workdir / "config.json").write_text(text + "\n")
    return workdir


def _stored_shards(workdir: pathlib.Path) -> int | None:
    if not checkpoints.checkpoint_steps(workdir / "checkpoints"):
        return None
    return checkpoints.read_metadata(workdir / "checkpoints")["data_shards"]


def _inputs(phases: Sequence[Phase], *, model: Experiment, shards: int | None) -> list[Inputs]:
    """The data of each phase."""
    return [
        data_side.build(phase.settings, model.mesh, shards=shards, phase=phase.reading)
        for phase in phases
    ]


def _start(model: Experiment, saver: Checkpoints) -> tuple[TrainState, DataState]:
    """The state where the run begins or goes on, and the data's position there."""
    restored = saver.restore_latest(model.abstract_state)
    if restored is None:
        return model.initial_state(), {}
    state, position = restored
    if jax.process_index() == 0:
        print(f"going on from step {int(state.step)} in {saver.folder}", flush=True)
    return state, position


def _train_phase(
    state: TrainState,
    *,
    model: Experiment,
    phase: Phase,
    data: Inputs,
    position: DataState,
    log: Log,
    saver: Checkpoints,
) -> Outcome:
    """Takes the steps that are left of a phase, on batches of its own shapes."""
    with one_line_errors():
        data.register()
        batches = data.train_batches
        if state.step > phase.first or phase.reading != phase.name:
            batches.restore(position)  # else it begins here, whatever was read before it
    if phase.name and jax.process_index() == 0:
        print(f"\nphase {phase.name!r}: steps {int(state.step) + 1} to {phase.last}", flush=True)
    with one_line_errors(FloatingPointError, CheckpointWriteError):
        return fit(
            state,
            train_step=model.train_step,
            batches=batches,
            put=model.put,
            steps=phase.last,
            log=log,
            checkpoints=saver,
            evaluate=_evaluation(model, data, first=int(state.step)),
            evaluate_every=model.config.evaluate.every,
        )


def _log(model: Experiment, data: Inputs, writer: MetricWriter) -> Log:
    """The log of a phase, whose steps are alike."""
    train = model.config.train
    return Log(
        writer,
        every=train.log_every,
        work=_work(model, data),
        hooks=[reporting.ProgressLine(steps=train.steps)],
    )


def _work(model: Experiment, data: Inputs) -> Work:
    """What a step does, counted on the shapes of a batch."""
    blank = data.train_batches.blank()
    parts = data.slice[1]
    shapes = {
        name: jax.ShapeDtypeStruct((rows.shape[0] * parts, *rows.shape[1:]), rows.dtype)
        for name, rows in blank.items()
    }
    peak = flops.peak_flops(jax.devices()[0], model.config.model.dtype)
    examples = data.config.data.batch_size
    tokens = sum(
        examples * rows[0].size for name, rows in blank.items() if name.endswith("input_tokens")
    )
    return Work(
        tokens=tokens,
        examples=examples,
        # With a key, as in training: in evaluation a loss may measure more.
        flops=flops.training(
            lambda p, b: model.loss(p, b, jax.random.key(0)), model.shapes.params, shapes
        ),
        peak_flops=None if peak is None else peak * jax.device_count(),
    )


def _evaluation(
    model: Experiment, data: Inputs, *, first: int
) -> Callable[[TrainState], Mapping[str, Any]]:
    """What is measured of a state, and how often each source has been read.

    Args:
        first: the step at which it was begun, or gone on, to draw batches.
    """

    def measure(state: TrainState) -> dict[str, Any]:
        epochs = data.epochs(batches=int(state.step) - first)
        return {f"{_EPOCHS}{task}": value for task, value in epochs.items()} | {
            f"{task}/{name}": value
            for task in data.eval_tasks
            for name, value in evaluate.measure(
                model, state.params, data.eval_batches(task)
            ).items()
        }

    return measure


def _report(step: int, workdir: pathlib.Path, data: Inputs) -> None:
    """Says how far the run got and where its traces are."""
    task = data.eval_tasks[0]
    size = data.config.model.vocab_size
    counts = data_side.target_counts(data.eval_batches(task), size=size)
    if jax.process_index() != 0:
        return
    if events := cleaning.describe_counts():
        print(f"\ncleaning: {events}")
    entropy = data_side.unigram_entropy(counts) if counts.any() else None
    log = reporting.read_log(workdir)
    held_out = log.get(f"{task}/cross_entropy", log[f"{task}/loss"])
    print(f"held-out loss {held_out[max(held_out)]:.3f} at step {step}")
    read = {name: log[name][max(log[name])] for name in log if name.startswith(_EPOCHS)}
    if read:
        epochs = (f"{value:.2f} of {name.removeprefix(_EPOCHS)}" for name, value in read.items())
        print(f"epochs read: {', '.join(epochs)}")
    if entropy is not None:
        print(f"unigram entropy of the held-out targets {entropy:.3f} nats")
    print(f"loss curve: {reporting.plot_loss(workdir, unigram_entropy=entropy)}")
    print(f"TensorBoard: tensorboard --logdir {workdir / 'tensorboard'}")


if __name__ == "__main__":
    config.run(train)
