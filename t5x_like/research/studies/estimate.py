"""Estimate the cost of a study before it starts: FLOPs, and hours at a given or measured rate."""

import dataclasses
import functools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from t5x_like.evaluation.training_evaluation import EvaluationPlan
from t5x_like.experiment import completion, model_side, reporting
from t5x_like.experiment.model_side import TaskProgram
from t5x_like.experiment.run import Run
from t5x_like.experiment.terminal import PROGRESS
from t5x_like.research.planning import batches
from t5x_like.research.scaling_laws import cost
from t5x_like.research.studies.cells import Cell, CellRun, runs_of

_STEPS = 5  # timed steps


@dataclasses.dataclass(frozen=True)
class RunCost:
    """The cost of a run.

    Attributes:
        parameters: number of parameters of its network.
        tokens: number of training tokens.
        flops_per_token: FLOPs of the matrix products of the loss and its gradient.
    """

    parameters: int
    tokens: int
    flops_per_token: float

    @property
    def flops(self) -> float:
        """FLOPs of the training, without evaluations."""
        return self.tokens * self.flops_per_token


@functools.cache
def of_run(run: CellRun) -> RunCost:
    """Return the cost of a run.

    Raises:
        ValueError: a setting does not exist or does not fit the others.
    """
    try:
        settings = _completed(run).settings
        run_cost = cost.of_settings(settings)
        [tokens] = cost.tokens_at(settings, [settings.train.steps])
    except ValueError as error:
        raise ValueError(f"{run.folder}: {error}") from error
    return RunCost(run_cost.parameters, tokens, run_cost.flops_per_token)


@functools.cache
def _completed(run: CellRun) -> Run:
    # The number of labels may follow from the data.
    return completion.complete(Run(run.settings))


def check(runs: Sequence[CellRun]) -> None:
    """Count the cost of runs, and show the progress, since each new network is traced.

    Raises:
        ValueError: see `of_run`; or a run does not measure a number of the study. Before training
            this finds a wrong network, and runs that would never be finished.
    """
    for number, run in enumerate(runs, start=1):
        PROGRESS.show(f"counting the FLOPs of run {number} of {len(runs)}: {run.folder} ...")
        of_run(run)
        _check_numbers(run)


def _check_numbers(run: CellRun) -> None:
    try:
        plan = EvaluationPlan(_completed(run))
        for number in run.numbers:
            plan.check_is_measured(number)
    except ValueError as error:
        raise ValueError(f"{run.folder}: {error}") from error


def measured_rate(runs: Sequence[CellRun]) -> tuple[float, str]:
    """Return the training FLOP/s on this machine, and how they were measured.

    They are the median over the finished runs or, without any, over a few steps of the first run.
    """
    rates = [rate for run in runs if run.is_finished() and (rate := _rate_of_log(run))]
    if rates:
        return statistics.median(rates), f"the median of {len(rates)} finished runs"
    PROGRESS.show(f"measuring the speed of {runs[0].folder} ...")
    first = completion.complete(Run(runs[0].settings))
    return _rate_of_steps(first), f"{_STEPS} steps of the first run"


def _rate_of_log(run: CellRun) -> float:
    speeds = reporting.read_log(run.folder).get("train/tokens_per_second", {})
    return statistics.median(speeds.values()) * of_run(run).flops_per_token if speeds else 0.0


def _rate_of_steps(run: Run) -> float:
    part = run.parts[0]
    model = model_side.build_tasks(run)[part.name]
    shapes = batches.batch(part.data)
    seconds = []
    with model.layout():
        # Ones make a full batch, as token ids, weights and segments.
        batch = model.put({name: np.ones(x.shape, x.dtype) for name, x in shapes.items()})
        state = model.initial_state().replace(carry=_memory(model, batch))
        for _ in range(_STEPS + 1):
            start = time.perf_counter()
            state, _ = jax.block_until_ready(model.train_step(state, batch))
            seconds.append(time.perf_counter() - start)
        flops = model.flops(shapes)
    return flops / statistics.median(seconds[1:])  # the first step compiles


def _memory(model: TaskProgram, batch: Mapping[str, jax.Array]) -> Any:
    """Return the `carry` of the state before the first batch; None for a task without memory."""
    carry = model.initial_carry(batch)
    return {model.name: carry} if model.name and carry is not None else carry


@dataclasses.dataclass(frozen=True)
class StudyCost:
    """What the finished runs of a study have cost.

    Attributes:
        runs: their number.
        parameters: the numbers of parameters of the smallest and the largest network.
        minutes: the sum of their training, at the median speed of each, without evaluations.
    """

    runs: int
    parameters: tuple[int, int]
    minutes: float


def of_finished(runs: Sequence[CellRun]) -> StudyCost | None:
    """Return the cost of the finished runs among `runs`; None without any."""
    finished = [run for run in runs if run.is_finished()]
    if not finished:
        return None
    costs = list(map(of_run, finished))
    parameters = [run_cost.parameters for run_cost in costs]
    minutes = sum(
        run_cost.flops / rate / 60
        for run_cost, rate in zip(costs, map(_rate_of_log, finished), strict=True)
        if rate
    )
    return StudyCost(len(finished), (min(parameters), max(parameters)), minutes)


def unfinished_flops(cells: Sequence[Cell]) -> float:
    """Return the FLOPs of the runs that are not finished."""
    check(missing := [run for run in runs_of(cells) if not run.is_finished()])
    return sum(of_run(run).flops for run in missing)


def table(cells: Sequence[Cell], *, rate: float, source: str, processes: int) -> Iterator[str]:
    """Yield the lines of the plan of a study: the runs of each arm, and the total."""
    first_seed = [cell for cell in cells if cell.seed == cells[0].seed]
    arms, runs = (
        max(map(len, names)) + 2
        for names in (
            ["arm", *(cell.arm for cell in first_seed)],
            ["run", *(name for cell in first_seed for name in cell.runs)],
        )
    )
    yield (
        f"{'arm':<{arms}}{'run':<{runs}}{'parameters':>14}{'steps':>9}{'tokens':>14}{'FLOPs':>11}"
    )
    for cell in first_seed:
        for name, run in cell.runs.items():
            of = of_run(run)
            yield (
                f"{cell.arm:<{arms}}{name:<{runs}}{of.parameters:>14,}{run.settings.train.steps:>9,}"
                f"{of.tokens:>14,}{of.flops:>11.3g}"
            )
    every = runs_of(cells)
    missing = [run for run in every if not run.is_finished()]
    flops = sum(of_run(run).flops for run in missing)
    total = sum(of_run(run).flops for run in every)
    yield (
        f"{len(cells)} cells of {len(every)} different runs, {total:.3g} FLOPs; "
        f"{len(missing)} runs of {flops:.3g} FLOPs are not finished"
    )
    yield (
        f"{flops / rate / 3600:.2f} hours at {rate:.3g} FLOP/s ({source}), in {processes} "
        "process(es) that share them; compilation and evaluation come on top"
    )
