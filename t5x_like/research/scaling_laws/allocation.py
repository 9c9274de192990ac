"""Allocate a budget of FLOPs: size, tokens, chip hours, and the training command."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax

from t5x_like import config, systems
from t5x_like.config.run_settings import RunSettings
from t5x_like.experiment import command_line
from t5x_like.experiment.run import Run
from t5x_like.names import hint
from t5x_like.research.planning import report
from t5x_like.research.planning.chips import CHIPS, Topology
from t5x_like.research.scaling_laws import cost
from t5x_like.research.scaling_laws.analysis import law_of
from t5x_like.research.scaling_laws.ladder import LEAST_STEPS
from t5x_like.research.scaling_laws.law import PUBLISHED, Law
from t5x_like.training import flops as flop_counts

_FAR = 10.0  # a size this many times off the optimum is refused

Allocation = dict[str, Any]


def find_law(name: str) -> Law:
    """Return a published law by its name, or approach 3 from a JSON file of `scaling fit`.

    Raises:
        ValueError: the law or file does not exist, or the file has no approach 3.
    """
    if name in PUBLISHED:
        return PUBLISHED[name]
    path = pathlib.Path(name).expanduser()
    if not path.is_file():
        raise ValueError(
            f"--law={name!r} is neither a published law nor a file that `scaling fit --json` wrote."
            + hint(name, PUBLISHED)
        )
    try:
        return law_of(json.loads(path.read_text())["approach_3"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"--law={name!r} has no approach_3 with E, A, B, alpha and beta: give a file that "
            "`scaling fit --json` wrote"
        ) from error


def allocate(
    budget: float, *, law: Law, system: str, changes: Sequence[str] = (), utilization: float
) -> tuple[Allocation, RunSettings]:
    """Return the best size and tokens for a budget, and settings of a system's nearest size.

    Args:
        budget: FLOPs.
        law: the loss of N parameters and D tokens.
        system: the system, whose sizes configs/SYSTEM.py has.
        changes: `--config.key=value` for that config.
        utilization: ratio of model FLOPs to the chips' peak, for the chip hours.

    Returns:
        The allocation, with the keys of docs/scaling.md, and the settings.

    Raises:
        ValueError: no size of the system is near the best one, or the budget is too small for it.
    """
    if not 0 < budget < math.inf:
        raise ValueError(f"--flops={budget:g} must be above 0")
    if not 0 < utilization <= 1:
        raise ValueError(f"--utilization={utilization:g} must be above 0, up to 1")
    n, d = law.optimum(budget)
    size = _nearest(n, system, budget=budget)
    settings = _settings(system, size, changes)
    run_cost = cost.of_settings(settings)
    each = cost.tokens_at(settings, [settings.train.steps])[0] / settings.train.steps
    steps = round(budget / run_cost.flops_per_token / each)
    if steps < LEAST_STEPS:
        raise ValueError(
            f"--flops={budget:g} is too small for size {size} of {system}: {steps} steps of "
            f"{each:,.0f} tokens; set a smaller --config.data.batch_size"
        )
    if settings.optimizer.get("warmup_steps", 0) >= steps:  # a schedule needs steps after it
        changes = [*changes, f"--config.optimizer.warmup_steps={steps // 10}"]
    # Read the config again with the steps, from which schedules and ends of phases follow.
    settings = _settings(system, size, [*changes, f"--config.train.steps={steps}"])
    optimum = float(law.loss(n, d))
    half = float(law.loss(n / 2, 2 * d))
    return {
        "flops": budget,
        "law": dataclasses.asdict(law),
        "N": n,
        "D": d,
        "loss": optimum,
        "half_size": {
            "loss": half,
            "lost": half - optimum,
            "flops_that_reach_it": law.flops_for(half),
        },
        "size": size,
        "parameters": run_cost.parameters,
        "tokens": steps * each,
        "steps": steps,
        "size_loss": float(law.loss(run_cost.parameters, steps * each)),
        "chip_hours": _chip_hours(budget, utilization),
        "command": _command(system, size, steps, budget, changes),
    }, settings


def _settings(system: str, size: str, changes: Sequence[str]) -> RunSettings:
    words = [f"--config=configs/{system}.py:{size}", *changes]
    return config.parse(command_line.parse(words)[0])


def _nearest(n: float, system: str, *, budget: float) -> str:
    counts = {
        size: _parameters(system, model) for size, model in systems.find(system).sizes.items()
    }
    size = min(counts, key=lambda name: abs(math.log(counts[name] / n)))
    if not 1 / _FAR < counts[size] / n < _FAR:
        raise ValueError(
            f"--flops={budget:g}: the best size has {n:,.0f} parameters, and the nearest one of "
            f"{system} is {size!r} with {counts[size]:,}: choose another budget or --system"
        )
    return size


def _parameters(system: str, settings: Mapping[str, Any]) -> int:
    module = systems.build(system, dict(settings))
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nn.unbox(boxed)["params"]))


def _chip_hours(budget: float, utilization: float) -> dict[str, float]:
    """Return the chip hours on each generation, at a share of its published peak."""
    hours = {}
    for name, chip in CHIPS.items():
        peak = flop_counts.peak_of_kind(chip.kind)
        assert peak is not None, name
        hours[name] = budget / (peak * chip.devices * utilization) / 3600
    return hours


def _command(system: str, size: str, steps: int, budget: float, changes: Sequence[str]) -> str:
    return " ".join(
        [
            "python -m t5x_like.train",
            f"--config=configs/{system}.py:{size}",
            f"--config.train.steps={steps}",
            f"--config.workdir=runs/{system}_{size}_{budget:.0e}",
            *changes,
        ]
    )


def on_topology(allocation: Allocation, settings: RunSettings, topology: Topology) -> Allocation:
    """Add the hours on a slice: the steps times the lower bound on a compiled step's time.

    Raises:
        ValueError: the config does not fit the topology.
        NoCompilerError: what compiles for the topology is not installed.
    """
    run = Run(settings)
    plan = report.with_compiler(report.arithmetic(run), run, topology)
    least = plan.get("step_seconds_lower_bound")
    return allocation | {
        "topology": topology.name,
        "chips": math.prod(topology.shape),
        "fits": plan["fits"],
        "verdict": report.verdict(plan),
        "hours_at_least": None if least is None else least * allocation["steps"] / 3600,
    }


def text(allocation: Allocation) -> str:
    """Format an allocation as text."""
    half = allocation["half_size"]
    wasted = 1 - half["flops_that_reach_it"] / allocation["flops"]
    lines = [
        f"{'FLOPs':<18}{allocation['flops']:.4g}",
        f"{'best size':<18}{allocation['N']:.4g} parameters, {allocation['D']:.4g} tokens "
        f"({allocation['D'] / allocation['N']:.1f} a parameter), loss {allocation['loss']:.4f}",
        f"{'half that size':<18}loses {half['lost']:.4f} nats, as {wasted:.1%} of the FLOPs",
        f"{'nearest size':<18}{allocation['size']}: {allocation['parameters']:,} parameters, "
        f"{allocation['tokens']:,.0f} tokens, {allocation['steps']:,} steps, "
        f"loss {allocation['size_loss']:.4f}",
        f"{'chip hours':<18}"
        + ", ".join(f"{name} {hours:,.3g}" for name, hours in allocation["chip_hours"].items()),
    ]
    if "topology" in allocation:
        hours = allocation["hours_at_least"]
        how = "no time is known" if hours is None else f"at least {hours:,.3g} hours"
        lines.append(
            f"{allocation['topology']:<18}{allocation['chips']:,} chips, {how}; "
            f"{allocation['verdict']}"
        )
    return "\n".join([*lines, "", allocation["command"]])
