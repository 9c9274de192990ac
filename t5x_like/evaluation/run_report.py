"""The report at the end of a run: losses, epochs read, and files written."""

import pathlib
import sys
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from t5x_like.batches import document_cleaning
from t5x_like.config.run_settings import CostSettings
from t5x_like.evaluation import shot_curves
from t5x_like.evaluation.training_evaluation import EPOCHS
from t5x_like.experiment import data_side, energy, reporting
from t5x_like.experiment.data_side import TaskData
from t5x_like.experiment.recurrent_state import Data
from t5x_like.training.loop import Outcome
from t5x_like.training.metrics import CONSTANT


def write(outcome: Outcome, workdir: pathlib.Path, data: Data, *, cost: CostSettings) -> None:
    """Print the report.

    Raises:
        WriteError: the plot of the losses cannot be written.
    """
    sys.stdout.writelines(f"{line}\n" for line in lines(outcome, workdir, data, cost=cost))


def lines(outcome: Outcome, workdir: pathlib.Path, data: Data, *, cost: CostSettings) -> list[str]:
    """Return the lines of the report; call it on all processes.

    The list is empty on all but the first process.
    """
    step = int(np.asarray(outcome.state.step))
    first = jax.process_index() == 0
    if outcome.interrupted:
        stopped = f"\nstopped and saved at step {step}: the same command resumes from there"
        return [stopped] if first else []
    entropies = {name: _held_out_entropy(inputs) for name, inputs in data.items()}
    if not first:
        return []

    events = document_cleaning.describe_counts()
    report = [f"\ncleaning: {events}"] if events else []
    log = reporting.read_log(workdir)
    for name, inputs in data.items():
        prefix = f"{name}/" if name else ""
        task = f"{prefix}{inputs.eval_tasks[0]}"
        held_out = log.get(f"{task}/cross_entropy", log.get(f"{task}/loss"))
        if held_out:  # the log of a finished run may have been deleted
            loss = held_out[max(held_out)]
            report.append(f"{name} held-out loss {loss:.3f} at step {step}".lstrip())
        report += accuracies(log, prefix=f"{task}/")
    read = {name: log[name][max(log[name])] for name in log if name.startswith(EPOCHS)}
    if read:
        epochs = (f"{value:.2f} of {name.removeprefix(EPOCHS)}" for name, value in read.items())
        report.append(f"epochs read: {', '.join(epochs)}")
    for name, entropy in entropies.items():
        if entropy is not None:
            where = f"held-out targets{f' of {name}' if name else ''}"
            report.append(f"unigram entropy of the {where} {entropy:.3f} nats")
    report += costs(log, cost, devices=jax.devices())
    entropy = entropies.get("")  # with several tasks no single entropy applies
    path = reporting.plot_loss(workdir, unigram_entropy=entropy, tasks=list(data))
    tensorboard = f"TensorBoard: tensorboard --logdir {workdir / 'tensorboard'}"
    return [*report, f"loss curve: {path}", tensorboard]


def costs(
    log: Mapping[str, Mapping[int, float]], settings: CostSettings, *, devices: Sequence[jax.Device]
) -> list[str]:
    """Describe the cost of all logged steps; [] on a CPU without `cost.watts` and `cost.price`."""
    rates = sorted(log.get("train/steps_per_second", {}).items())
    begins = [0, *(step for step, _ in rates)]
    hours = sum((step - begin) / rate for begin, (step, rate) in zip(begins, rates, strict=False))
    hours *= len(devices) / 3600
    cost = energy.cost(settings, kind=devices[0].device_kind, device_hours=hours)
    if devices[0].platform == "cpu" and cost.kwh is cost.price is None:
        return []
    return [f"cost of the steps: {'; '.join(energy.lines(cost, settings))}"]


def accuracies(log: Mapping[str, Mapping[int, float]], *, prefix: str) -> list[str]:
    """Describe the held-out accuracies of classes, each with the accuracy of a constant."""
    described = []
    for name in (name for name in log if name.startswith(prefix) and name.endswith(CONSTANT)):
        accuracy, constant = name.removesuffix(CONSTANT) + "accuracy", log[name]
        # Prompts with several numbers of examples have an accuracy for each.
        for number in (number for number in log if shot_curves.without_shots(number) == accuracy):
            values = log[number]
            described.append(
                f"held-out {number.removeprefix(prefix)} {values[max(values)]:.1%}, of always the "
                f"most frequent class {constant[max(constant)]:.1%}"
            )
    return described


def _held_out_entropy(data: TaskData) -> float | None:
    """Return the unigram entropy of the held-out targets in nats; None without targets."""
    size = data.part.model["vocab_size"]
    counts = data_side.target_counts(data.eval_batches(data.eval_tasks[0]), size=size)
    return data_side.unigram_entropy(counts) if counts.any() else None
