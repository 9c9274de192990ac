"""Design a ladder, runs of several sizes for each of several budgets of FLOPs, and train it."""

import collections
import dataclasses
import functools
import json
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5x_like import config, systems
from t5x_like.config.run_settings import RunSettings
from t5x_like.experiment import command_line, training_processes
from t5x_like.experiment.training_processes import Job
from t5x_like.names import hint, trust_code
from t5x_like.research.scaling_laws import approaches, cautions, cost
from t5x_like.research.scaling_laws.cost import Cost
from t5x_like.research.scaling_laws.trained import final_loss

LEAST_STEPS = 50  # minimum steps of a run
_LOGS = 100  # log lines of a run: the points of its training curve


@dataclasses.dataclass(frozen=True)
class Rung:
    """One run of a ladder.

    Attributes:
        size: the name of the size.
        budget: the FLOPs asked for; `flops` are the actual FLOPs of whole steps.
        cost: the cost of its network.
        tokens: number of training tokens.
        settings: the settings of the run, with its folder.
    """

    size: str
    budget: float
    cost: Cost
    tokens: int
    settings: RunSettings

    @property
    def folder(self) -> pathlib.Path:
        """The folder of the run."""
        return pathlib.Path(self.settings.workdir)

    @property
    def flops(self) -> float:
        """The FLOPs of the run."""
        return self.cost.flops_per_token * self.tokens


@dataclasses.dataclass(frozen=True)
class Design:
    """The settings of a ladder.

    Attributes:
        budgets: FLOPs.
        sizes: names of sizes of the system, or `4x256`: layers and width.
        rates: a learning rate for each size; () for the config's.
        tokens_per_parameter: minimum and maximum; runs outside are left out.
        corpus_tokens: the tokens of the corpus; runs that would read more are left out.
        count: how FLOPs are counted, one of `cost.COUNTS`.
    """

    budgets: tuple[float, ...]
    sizes: tuple[str, ...]
    rates: tuple[float, ...] = ()
    tokens_per_parameter: tuple[float, float] = (0.0, float("inf"))
    corpus_tokens: float = float("inf")
    count: str = "counted"


def design(base: RunSettings, ladder: Design, *, folder: pathlib.Path) -> list[Rung]:
    """Return the runs of a ladder, the smallest budget first.

    Each run is the base config with the model of its size, the steps of its budget, and a warmup
    and cosine schedule scaled to end with the run.

    Raises:
        ValueError: the system does not have a size, the schedule is not a cosine, a budget is too
            small for a size or leaves no size, or settings do not fit.
    """
    _check(base, ladder)
    rungs = []
    for budget in sorted(ladder.budgets):
        rungs_of_budget = []
        for number, size in enumerate(ladder.sizes):
            rate = ladder.rates[number] if ladder.rates else base.optimizer["learning_rate"]
            rung = _rung(base, size, budget, rate=rate, ladder=ladder, folder=folder)
            rungs_of_budget += [rung] if _is_wanted(rung, ladder) else []
        if not rungs_of_budget:
            raise ValueError(
                f"--flops={budget:g} has none of the --sizes within --ratio and --corpus_tokens: "
                "add sizes, or widen the limits"
            )
        for rung in rungs_of_budget:
            _check_steps(rung)
        rungs += rungs_of_budget
    return rungs


def _is_wanted(rung: Rung, ladder: Design) -> bool:
    low, high = ladder.tokens_per_parameter
    within = low <= rung.tokens / rung.cost.parameters <= high
    return within and rung.tokens <= ladder.corpus_tokens


def _check(base: RunSettings, ladder: Design) -> None:
    for budget in ladder.budgets:
        if not 0 < budget < float("inf"):
            raise ValueError(f"--flops={budget:g} must be above 0")
    if ladder.rates and len(ladder.rates) != len(ladder.sizes):
        raise ValueError(
            f"--learning_rates has {len(ladder.rates)} values for {len(ladder.sizes)} --sizes: "
            "give one for each, or none for the config's"
        )
    if base.optimizer.get("schedule") != "cosine":
        raise ValueError(
            f"optimizer.schedule={base.optimizer.get('schedule')!r} must be 'cosine', which ends "
            "with each run: set --config.optimizer.schedule=cosine and its learning_rate"
        )
    if base.train.phases:
        raise ValueError("the config has phases, and the runs of a ladder have none")


def _rung(
    base: RunSettings,
    size: str,
    budget: float,
    *,
    rate: float,
    ladder: Design,
    folder: pathlib.Path,
) -> Rung:
    model = {**base.model, **model_settings(base, size)}
    settings = dataclasses.replace(base, model=model)
    run_cost = cost.of_settings(settings, count=ladder.count)
    [each] = cost.tokens_at(settings, [1])
    steps = max(1, round(budget / (run_cost.flops_per_token * each)))
    share = base.optimizer.get("warmup_steps", 0) / base.train.steps
    end = base.optimizer.get("end_learning_rate", 0.0) / base.optimizer["learning_rate"]
    log_every, save_every = max(1, steps // _LOGS), max(100, steps // 4)
    settings = dataclasses.replace(
        settings,
        workdir=str(folder / f"{budget:.2e}_{size}"),
        train=dataclasses.replace(base.train, steps=steps, log_every=log_every),
        evaluate=dataclasses.replace(base.evaluate, every=0),
        checkpoint=dataclasses.replace(base.checkpoint, every=save_every, keep=1),
        optimizer={
            **base.optimizer,
            "learning_rate": rate,
            "end_learning_rate": rate * end,
            "warmup_steps": max(1, round(share * steps)),
            "decay_steps": steps,
        },
    )
    return Rung(size, budget, run_cost, steps * each, settings)


def _check_steps(rung: Rung) -> None:
    steps = rung.settings.train.steps
    if steps < LEAST_STEPS:
        raise ValueError(
            f"--flops={rung.budget:g} is too small for size {rung.size} of "
            f"{rung.cost.parameters:,} parameters: {steps} steps of "
            f"{rung.tokens // steps:,} tokens, and {LEAST_STEPS} is the least; leave the size out, "
            "raise the budget or set a smaller data.batch_size"
        )


def model_settings(base: RunSettings, size: str) -> dict[str, Any]:
    """Return the model settings of a size: from the system's table, or of LAYERSxWIDTH.

    For LAYERSxWIDTH the base config's ratio of d_ff to d_model and width of a head are kept.

    Raises:
        ValueError: the size does not exist, or the width is not a multiple of a head's width.
    """
    table = systems.find(base.system).sizes
    shape = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", size)
    if size in table:
        keep = {"vocab_size": base.model["vocab_size"]} if "vocab_size" in base.model else {}
        return {**table[size], "dtype": base.model.get("dtype", "float32"), **keep}
    if shape is None:
        raise ValueError(
            f"--sizes: {base.system} has no size {size!r}; write LAYERSxWIDTH, as 4x256, or a name."
            + hint(size, table)
        )
    layers, width = int(shape[1]), int(shape[2])
    model = base.model
    depths = {
        name: layers for name in ("layers", "encoder_layers", "decoder_layers") if name in model
    }
    return depths | _widths(model, size, width)


def _widths(model: Mapping[str, Any], size: str, width: int) -> dict[str, int]:
    head = model["d_model"] // model["heads"] if "heads" in model else 1
    if width % head:
        raise ValueError(
            f"--sizes: the width of {size} must be a multiple of {head}, the width of a head in "
            "the config (d_model / heads)"
        )
    widths = {"d_model": width, "d_ff": round(model["d_ff"] * width / model["d_model"])}
    if "heads" in model:
        widths["heads"] = width // head
    if model.get("kv_heads") == model.get("heads", 0):
        widths["kv_heads"] = width // head
    return widths


def write(rungs: Sequence[Rung]) -> None:
    """Write the config.json of each run, which `configs/run.py` reads.

    Raises:
        ValueError: a folder has a run with other settings.
    """
    for rung in rungs:
        path = rung.folder / "config.json"
        if path.exists() and json.loads(path.read_bytes()) != config.to_dict(rung.settings):
            raise ValueError(
                f"{path} is of a run with other settings: choose another --output, or remove it"
            )
    for rung in rungs:
        trust_code(config.to_dict(rung.settings))  # for the training process
        command_line.write_json(rung.folder / "config.json", config.to_dict(rung.settings))


def warnings(rungs: Sequence[Rung]) -> list[str]:
    """Return warnings about a later fit to the runs, as sentences."""
    sizes = collections.Counter(rung.budget for rung in rungs)
    few = [budget for budget, number in sizes.items() if number < approaches.LEAST_SIZES]
    steps = {rung.folder.name: rung.settings.train.steps for rung in rungs}
    return cautions.of_few_sizes(few) + cautions.of_few_steps(steps)


def table(rungs: Sequence[Rung]) -> Iterator[str]:
    """Yield the lines of a table of the runs."""
    yield (
        f"{'run':<22}{'N':>14}{'without emb.':>14}{'tokens':>16}{'steps':>9}{'FLOPs':>11}"
        f"{'6 N D':>11}{'D / N':>8}"
    )
    for rung in rungs:
        n, d = rung.cost.parameters, rung.tokens
        yield (
            f"{rung.folder.name:<22}{n:>14,}{rung.cost.without_embeddings:>14,}{d:>16,}"
            f"{rung.settings.train.steps:>9,}{rung.flops:>11.3g}{6 * n * d:>11.3g}{d / n:>8.1f}"
        )


def train_ladder(rungs: Sequence[Rung]) -> bool:
    """Train the unfinished runs, and print a line for each.

    SIGTERM or Ctrl-C saves the current run and stops; the same call continues from there.

    Returns:
        Whether all runs are finished.

    Raises:
        ValueError: a run failed, or the working folder has no configs/run.py.
    """
    rungs_by_folder = {rung.folder: rung for rung in rungs}
    numbers = {folder: number for number, folder in enumerate(rungs_by_folder, start=1)}

    def report(job: Job, seconds: float | None) -> None:
        loss = _loss(rungs_by_folder[job.folder])
        when = "finished before" if seconds is None else f"{seconds:.0f} s"
        position = f"{numbers[job.folder]}/{len(rungs_by_folder)}"
        sys.stdout.write(f"{position} {job.folder.name}: held-out loss {loss:.4f} ({when})\n")
        sys.stdout.flush()

    jobs = [Job(rung.folder, functools.partial(_is_finished, rung)) for rung in rungs]
    return training_processes.train(jobs, report=report)


def _is_finished(rung: Rung) -> bool:
    return _loss(rung) is not None


def _loss(rung: Rung) -> float | None:
    return final_loss(rung.settings, rung.folder)
