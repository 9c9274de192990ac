"""Compare Switch Transformer with T5 at equal FLOPs per token: held-out loss by step and time.

    python -m benchmarks.switch_vs_dense choice --first-seed=1000 --steps=300 --out=runs/choice
    python -m benchmarks.switch_vs_dense claim --seeds=3 --steps=800 --out=runs/claim
    python -m benchmarks.switch_vs_dense capacity --steps=400 --out=runs/capacity

`claim` tests the claim of Fedus et al. (2022, section 3), and `capacity` repeats their table 1, at
the size and with the vocabulary of Switch's demo; `choice` tries settings for both. The runs of a
seed read the same batches and take turns of a few steps in one process, so that other work on the
machine slows all of them equally: times are given as ratios of a step to T5's step.

After a warmup the learning rate is constant. If it decayed, losses in the middle of a run would not
be comparable with a finished run, and "the steps to the final loss of another" would compare a run
cut short with a complete run.
"""

if __name__ == "__main__":
    # Before the imports below, which take seconds: help and errors are quick.
    from t5x_like.experiment.command_line import ArgumentParser, count

    PARSER = ArgumentParser(__doc__, prog="python -m benchmarks.switch_vs_dense")
    PARSER.add_argument("comparison", choices=("choice", "claim", "capacity"))
    PARSER.add_argument("--seeds", type=count, default=1, help="how many")
    PARSER.add_argument("--first-seed", type=int, default=0)
    PARSER.add_argument("--steps", type=count, default=400)
    PARSER.add_argument("--every", type=count, default=100, help="steps between evaluations")
    PARSER.add_argument("--batch", type=count, default=8, help="rows of 128 inputs and 32 targets")
    PARSER.add_argument("--warmup", type=int, default=100, help="steps")
    PARSER.add_argument("--learning-rate", type=float, default=0.03)
    PARSER.add_argument("--init-scale", type=float, default=0.1, help="of Switch; the paper: 0.1")
    PARSER.add_argument("--vocabulary", default="runs/switch_demo/vocabulary.model")
    PARSER.add_argument("--out", required=True, help="folder for results and picture")
    ARGUMENTS = PARSER.parse_args()

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import matplotlib.figure
import numpy as np

from benchmarks.train_step import load_config
from t5x_like.config import one_line_errors
from t5x_like.experiment import data_side, model_side
from t5x_like.experiment.command_line import check_folder
from t5x_like.experiment.model_side import Experiment
from t5x_like.experiment.run import of_config
from t5x_like.systems import switch, t5
from t5x_like.training import metrics
from t5x_like.training.step import TrainState

DENSE = "T5"
TURN = 10  # steps of a turn


def main(arguments: argparse.Namespace) -> None:
    """Run, print and draw a comparison."""
    out = Path(arguments.out)
    with one_line_errors():
        check_folder("--out", out)
        models = {
            name: build(own, arguments, learning_rate=rate)
            for name, (own, rate) in contenders(arguments).items()
        }
        first = arguments.first_seed
        seeds = [
            race(models, seed=seed, steps=arguments.steps, every=arguments.every)
            for seed in range(first, first + arguments.seeds)
        ]
    out.mkdir(parents=True, exist_ok=True)
    rows = [{name: dataclasses.asdict(run) for name, run in runs.items()} for runs in seeds]
    (out / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
    report(seeds)
    draw(seeds, out / "losses.png")


def contenders(arguments: argparse.Namespace) -> dict[str, tuple[dict[str, Any], float]]:
    """Return {name: (settings besides T5's, learning rate)}."""
    if arguments.comparison == "choice":
        models: dict[str, dict[str, Any]] = {DENSE: {}}
        models |= {f"Switch, init {x}": {"experts": 8, "init_scale": x} for x in (0.1, 1.0)}
        return {f"{name}, {x}": (own, x) for name, own in models.items() for x in (0.01, 0.03, 0.1)}
    sparse = {"experts": 8, "init_scale": arguments.init_scale}
    models = {DENSE: {}}
    if arguments.comparison == "claim":
        models["Switch"] = sparse
    else:
        models |= {
            f"{name}, {factor}": sparse | {"router": router, "capacity_factor": factor}
            for name, router in (("Switch", "switch"), ("top-2", "top2"))
            for factor in (1.0, 1.25, 2.0)
        }
    return {name: (own, arguments.learning_rate) for name, own in models.items()}


def build(
    own: Mapping[str, Any], arguments: argparse.Namespace, *, learning_rate: float
) -> Experiment:
    """Build a model at the size of Switch's demo, sparse if it has settings besides T5's."""
    config = load_config("configs/switch.py", "demo")
    dense = {name: config.model[name] for name in t5.SIZES["small"]}
    if own:
        # Kernels have T5's shapes; their initialization is part of the paper's method.
        config.model = {**switch.SIZES["base_8"], **dense, **own}
    else:
        config.system, config.model = "t5", dense
    config.loss = {"z_loss": 1e-4, "label_smoothing": 0.0}
    config.data.vocabulary = arguments.vocabulary
    config.data.batch_size = arguments.batch
    config.evaluate.batches = max(1, 160 // arguments.batch)  # the same rows for any batch size
    config.optimizer = {
        "name": "adafactor",
        "schedule": "constant",
        "learning_rate": learning_rate,
        "warmup_steps": arguments.warmup,
    }
    return model_side.build(of_config(config))


@dataclasses.dataclass
class Run:
    """The results of one model on one seed.

    Attributes:
        losses: {step: held-out cross-entropy in nats}.
        ratio: median over the turns of the time of a step divided by the first model's.
        training: {step: dropped tokens and experts' load since the previous evaluation}.
    """

    losses: dict[int, float] = dataclasses.field(default_factory=dict)
    ratio: float = math.nan
    training: dict[int, dict[str, float]] = dataclasses.field(default_factory=dict)


def race(models: Mapping[Any, Experiment], *, seed: int, steps: int, every: int) -> dict[Any, Run]:
    """Train models on the same batches, in turns; return the result of each."""
    first = next(iter(models.values()))
    held_out = list(data_side.build(first.part, first.mesh).eval_batches(first.part.data.task))
    # The seed changes only the training data: all seeds are evaluated on the same examples.
    part = dataclasses.replace(first.part, data=dataclasses.replace(first.part.data, seed=seed))
    data = data_side.build(part, first.mesh)
    runs = {name: Run() for name in models}
    racers = {name: Racer(model, seed=seed) for name, model in models.items()}
    for step in range(0, steps, TURN):
        batches = list(itertools.islice(data.train_batches, min(TURN, steps - step)))
        done = step + len(batches)
        for name, racer in racers.items():
            racer.take(batches)
            if done // every > step // every or done == steps:
                runs[name].losses[done] = racer.held_out_loss(held_out)
                runs[name].training[done] = racer.routing()
                print(f"seed {seed}, step {done}: {name} {runs[name].losses[done]:.4f}", flush=True)
    reference = next(iter(racers.values())).seconds
    for name, racer in racers.items():
        ratios = [own / one for own, one in zip(racer.seconds, reference, strict=True)]
        runs[name].ratio = statistics.median(ratios[1:] or ratios)  # the first turn compiles
    return runs


class Racer:
    """A model in training."""

    def __init__(self, model: Experiment, *, seed: int):
        self.seconds: list[float] = []  # one per turn
        self._model = model
        self._state: TrainState = model.initial_state(seed=seed)
        self._metrics: list[metrics.Metrics] = []

    def take(self, batches: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Train for one turn."""
        found = []
        start = time.perf_counter()
        with self._model.layout():
            for batch in batches:
                self._state, one = self._model.train_step(self._state, self._model.put(batch))
                found.append(one)
            jax.block_until_ready(self._state)
        self.seconds.append(time.perf_counter() - start)
        self._metrics += jax.device_get(found)

    def held_out_loss(self, batches: Sequence[Mapping[str, np.ndarray]]) -> float:
        """Return the held-out cross-entropy of the current parameters."""
        with self._model.layout():
            found = self._model.measure(self._state.params, batches)
        return found["cross_entropy"]

    def routing(self) -> dict[str, float]:
        """Return the routing statistics since the last call."""
        values, _ = metrics.split(metrics.compute(metrics.merge(self._metrics)))
        self._metrics = []
        return {k: v for k, v in values.items() if k.startswith(("tokens_dropped", "expert_load"))}


def steps_to(loss: float, losses: Mapping[int, float]) -> float:
    """Return the step at which a run first reached a loss, linearly interpolated; NaN if never."""
    before: tuple[int, float] | None = None
    for step, value in losses.items():
        if value <= loss:
            if before is None:
                return float(step)
            return before[0] + (step - before[0]) * (before[1] - loss) / (before[1] - value)
        before = step, value
    return math.nan


def report(seeds: Sequence[Mapping[str, Run]]) -> None:
    """Print a table: final losses, and the share of steps needed to reach the first model's."""
    print("\n| | final held-out loss | its step | steps to the final loss of the first | dropped |")
    print("|---|---|---|---|---|")
    first, *_ = seeds[0]
    for name in seeds[0]:
        runs = [runs[name] for runs in seeds]
        last = max(runs[0].losses)
        parts = [steps_to(each[first].losses[last], each[name].losses) / last for each in seeds]
        dropped = [100 * run.training[last].get("tokens_dropped", 0.0) for run in runs]
        row = (
            spread([run.losses[last] for run in runs], form=".3f"),
            spread([run.ratio for run in runs], form=".2f"),
            "not reached" if any(map(math.isnan, parts)) else spread(parts, form=".2f"),
            spread(dropped, form=".1f") + "%",
        )
        print(f"| {name} | {' | '.join(row)} |")


def spread(values: Sequence[float], *, form: str) -> str:
    """Format the mean and the range of values."""
    text = f"{statistics.mean(values):{form}}"
    if len(values) == 1:
        return text
    return f"{text} ({min(values):{form}} to {max(values):{form}})"


def draw(seeds: Sequence[Mapping[str, Run]], path: Path) -> None:
    """Draw the held-out losses of all seeds, over steps and over time."""
    figure = matplotlib.figure.Figure(figsize=(10, 4), layout="constrained")
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    for number, runs in enumerate(seeds):
        for color, (name, run) in enumerate(runs.items()):
            steps, losses = list(run.losses), list(run.losses.values())
            style = {"color": f"C{color}", "linewidth": 1, "label": None if number else name}
            by_step.plot(steps, losses, **style)
            by_time.plot([step * run.ratio for step in steps], losses, **style)
    by_step.set(xlabel="step", ylabel="held-out cross-entropy, nats")
    by_time.set(xlabel="time, in steps of T5")
    by_step.legend()
    for axes in (by_step, by_time):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    main(ARGUMENTS)
