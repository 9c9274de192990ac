"""The cost of a config's run: parameters, tokens and FLOPs, counted from shapes."""

import dataclasses
import functools
import json
from collections.abc import Sequence

import jax

from t5x_like.config.run_settings import RunSettings
from t5x_like.experiment import model_side
from t5x_like.experiment.run import Part, Run
from t5x_like.names import choose
from t5x_like.research.planning import batches, counting, report

COUNTS = ("counted", "6nd")
_LOOKED_UP = ("embedding", "positions", "head")


@dataclasses.dataclass(frozen=True)
class Cost:
    """The size of a network, and the cost of training it on a token.

    Attributes:
        parameters: parameters of the whole network.
        without_embeddings: parameters without embedding tables, positions and output layer, as
            counted by Kaplan et al. 2020.
        flops_per_token: FLOPs of the matrix products of the loss and its gradient, masked positions
            included (`training.flops`), as in Hoffmann et al. 2022, appendix F, but without
            embedding lookups and softmax. With the count `6nd`, 6 times the parameters.
    """

    parameters: int
    without_embeddings: int
    flops_per_token: float


def of_settings(settings: RunSettings, *, count: str = "counted") -> Cost:
    """Return the cost of a run; with several tasks, the mean over its steps.

    Args:
        settings: the settings of the run.
        count: how FLOPs are counted, one of COUNTS.

    Raises:
        ValueError: a setting does not exist or does not fit the others.
    """
    choose("--count", count, dict.fromkeys(COUNTS))
    run_cost = _counted(_network(settings))
    if count == "6nd":
        return dataclasses.replace(run_cost, flops_per_token=6.0 * run_cost.parameters)
    return run_cost


@dataclasses.dataclass(frozen=True)
class _Network:
    """A run's network and batches; runs that have both equal are counted once.

    Attributes:
        key: the settings of the network and the shapes of the batches, as text.
        run: a run that has them.
    """

    key: str
    run: Run = dataclasses.field(compare=False)


def _network(settings: RunSettings) -> _Network:
    run = Run(
        RunSettings(
            **{name: getattr(settings, name) for name in ("system", "model", "loss", "data")},
            tasks=settings.tasks,
            mesh=report.ONE_DEVICE,
            # Placeholders: the optimizer does not count, and the folder is not read.
            initialize="any",
            optimizer={"name": "adamw", "schedule": "constant", "learning_rate": 1.0},
        )
    )
    parts = []
    for part in run.parts:
        shapes = {name: (x.shape, str(x.dtype)) for name, x in batches.batch(part.data).items()}
        parts.append((part.name, part.model, part.loss, part.weight, part.data.objective, shapes))
    key = json.dumps([settings.system, settings.model, parts], sort_keys=True)
    return _Network(key, run)


@functools.lru_cache(maxsize=1024)
def _counted(network: _Network) -> Cost:
    run = network.run
    models = model_side.build_tasks(run, devices=jax.devices("cpu")[:1])
    model = next(iter(models.values()))
    parameters = counting.parameters(
        model.shapes.params, model.axes.params, model=run.settings.model
    )
    with model.layout():
        flops = sum(
            share * models[name].flops(fields) for name, share, fields in _batches(run.parts)
        )
    return Cost(
        parameters=sum(parameter.size for parameter in parameters),
        without_embeddings=sum(
            parameter.size for parameter in parameters if parameter.part not in _LOOKED_UP
        ),
        flops_per_token=flops / _tokens_of_step(run.parts),
    )


def _batches(parts: Sequence[Part]) -> list[tuple[str, float, batches.BatchShapes]]:
    """Return (name, share of the steps, batch) for each task of a run."""
    total = sum(part.weight for part in parts)
    return [(part.name, part.weight / total, batches.batch(part.data)) for part in parts]


def _tokens_of_step(parts: Sequence[Part]) -> float:
    return sum(share * batches.tokens(fields) for _, share, fields in _batches(parts))


def tokens_at(settings: RunSettings, steps: Sequence[int]) -> list[int]:
    """Return the tokens trained on up to each of these steps; with several tasks, on average."""
    phases = [
        (phase.first, phase.last, _tokens_of_step(phase.parts)) for phase in Run(settings).phases
    ]
    return [
        round(sum(each * max(0, min(step, last) - first) for first, last, each in phases))
        for step in steps
    ]
