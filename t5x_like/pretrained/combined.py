"""Several pretrained models as one, whose predictions are averaged."""

from collections.abc import Mapping, Sequence

from t5x_like.models.networks.ensemble import Ensemble
from t5x_like.pretrained.model import Pretrained


def ensemble(models: Sequence[Pretrained]) -> Pretrained:
    """A model that averages those of several: logits to generate, probabilities of heads.

    The models may be of other sizes and systems; they must have the same vocabulary and the names
    of their labels in the same order, which only whoever has them can check. Settings of generation
    are those of the first.

    Raises:
        ValueError: fewer than two models, or models with other outputs.
    """
    if len(models) < 2:
        raise ValueError(f"an ensemble of {len(models)}: two models or more are needed")
    first = models[0]
    for model in models:
        _check(first, model)
    # Each its own object, also where two are equal.
    module = Ensemble(tuple(model.module.clone() for model in models))
    return type(first)(
        module,
        {f"members_{n}": model.params for n, model in enumerate(models)},
        system=first.system,
        config=first.config,
        generation=first.generation,
        mesh=first.mesh,
    )


def _check(first: Pretrained, model: Pretrained) -> None:
    """Check that the outputs of two models can be averaged."""
    for name in ("vocab_size", "head", "labels"):
        own = [one.config.get(name) for one in (first, model)]
        if isinstance(own[0], Mapping):
            raise ValueError("an ensemble of runs of several tasks is not supported")
        generates = first.module.generates
        if own[0] != own[1] and (generates or name != "vocab_size"):
            raise ValueError(
                f"the members of an ensemble have model.{name}={own[0]!r} and {own[1]!r}: their "
                "outputs cannot be averaged"
            )
    if first.module.sides != model.module.sides:
        sides = " and ".join("+".join(one.module.sides) for one in (first, model))
        raise ValueError(f"the members of an ensemble read {sides}: choose models of one kind")
