"""What a run of a config costs: parameters, tokens and FLOPs, counted from shapes."""

import dataclasses
import functools
import json
from collections.abc import Sequence

import jax

from t5x_like import config
from t5x_like.config.run_settings import RunSettings
from t5x_like.experiment import model_side
from t5x_like.experiment.run import Part, Run
from t5x_like.names import choose
from t5x_like.planning import batches, counting, report

COUNTS = ("counted", "6nd")
_LOOKED_UP = ("embedding", "positions", "head")


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a network and of a token that it is trained on.

    Attributes:
        parameters: of the whole network.
        without_embeddings: without embedding tables, positions and output layer, as Kaplan et al.
            2020 count them.
        flops_per_token: of the matrix products of the loss and its gradient, masked positions
            included (`training.flops`): the FLOPs of Hoffmann et al. 2022, appendix F, without
            lookups in the embedding and softmax. With the count `6nd`, 6 times the parameters.
    """

    parameters: int
    without_embeddings: int
    flops_per_token: float


def of_settings(settings: RunSettings, *, count: str = "counted") -> Cost:
    """The cost of a run; of several tasks the mean over its steps.

    Args:
        count: how FLOPs are counted, one of COUNTS.

    Raises:
        ValueError: a setting that does not exist or does not fit the others.
    """
    choose("--count", count, dict.fromkeys(COUNTS))
    stored = config.to_dict(settings)
    # Only these matter, so that runs of one network are counted once.
    parts = {name: stored[name] for name in ("system", "model", "loss", "data", "tasks")}
    found = _counted(json.dumps(parts, sort_keys=True))
    if count == "6nd":
        return dataclasses.replace(found, flops_per_token=6.0 * found.parameters)
    return found


@functools.lru_cache(maxsize=1024)
def _counted(text: str) -> Cost:
    settings = config.of_stored(
        {
            **json.loads(text),
            # Any optimizer, since it does not count; any folder to start from: it is not read.
            "initialize": "any",
            "optimizer": {"name": "adamw", "schedule": "constant", "learning_rate": 1.0},
        }
    )
    run = Run(dataclasses.replace(settings, mesh=report.ONE_DEVICE))
    models = model_side.build_tasks(run, devices=jax.devices("cpu")[:1])
    model = next(iter(models.values()))
    found = counting.parameters(model.shapes.params, model.axes.params, model=settings.model)
    with model.layout():
        flops = sum(
            share * models[name].flops(fields) for name, share, fields in _batches(run.parts)
        )
    return Cost(
        parameters=sum(one.size for one in found),
        without_embeddings=sum(one.size for one in found if one.part not in _LOOKED_UP),
        flops_per_token=flops / _tokens_of_step(run.parts),
    )


def _batches(parts: Sequence[Part]) -> list[tuple[str, float, batches.Batch]]:
    """Of each task of a run its name, its share of the steps, and its batch."""
    total = sum(part.weight for part in parts)
    return [(part.name, part.weight / total, batches.batch(part.data)) for part in parts]


def _tokens_of_step(parts: Sequence[Part]) -> float:
    return sum(share * batches.tokens(fields) for _, share, fields in _batches(parts))


def tokens_at(settings: RunSettings, steps: Sequence[int]) -> list[int]:
    """The tokens that a run is trained on up to each of these steps; of several tasks the mean."""
    phases = [
        (phase.first, phase.last, _tokens_of_step(phase.parts)) for phase in Run(settings).phases
    ]
    return [
        round(sum(each * max(0, min(step, last) - first) for first, last, each in phases))
        for step in steps
    ]
