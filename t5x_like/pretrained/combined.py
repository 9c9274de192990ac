"""Ensembles: several pretrained models as one model that averages their predictions."""

from collections.abc import Mapping, Sequence

from t5x_like.nn.compound_networks import Ensemble
from t5x_like.pretrained.model import Pretrained


def ensemble(models: Sequence[Pretrained]) -> Pretrained:
    """Combine models into one that averages the logits that generate, or the heads' probabilities.

    The models may differ in size and system; they must have the same vocabulary, and the same
    labels in the same order, which is not checked here beyond their number. The generation settings
    come from the first model.

    Raises:
        ValueError: there are fewer than two models, or their outputs differ in kind.
    """
    if len(models) < 2:
        raise ValueError(f"an ensemble of {len(models)}: two models or more are needed")
    first = models[0]
    for model in models:
        _check(first, model)
    # Cloned, because two equal modules must still be separate objects.
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
