"""Networks whose experts drop no tokens, so that scoring a text agrees with generating it."""

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from t5x_like.models.factories import change_factories, change_settings
from t5x_like.models.feed_forward.moe import SparseFeedForward
from t5x_like.models.feed_forward.routers import ExpertChoiceRouter


def undropped(module: nn.Module) -> nn.Module:
    """Return the network with `SparseFeedForward.drops` off; unchanged if it has no experts.

    A generation step has slots for all its tokens. A forward pass over the whole text does not: it
    drops tokens, depending on the length of the row and on the other rows of its group, and so
    gives the text a different probability. All code that samples or scores texts therefore uses
    this function's network; its parameters are the same.

    The encoder of an encoder-decoder is unchanged if each row has a fixed number of slots
    (`expert_capacity` without `group_size`, as in Hugging Face's checkpoints): an encoder reads the
    same row in generation and in scoring, and so drops the same tokens.

    Raises:
        ValueError: the router is an `ExpertChoiceRouter`.
    """
    if members := getattr(module, "members", ()):  # the module is an `Ensemble`
        complete = tuple(map(undropped, members))
        same = all(new is old for new, old in zip(complete, members, strict=True))
        return module if same else module.clone(members=complete)
    changed = change_settings(module, SparseFeedForward, _keep)
    if changed is module or getattr(module, "make_decoder", None) is None:
        return changed
    if not hasattr(module, "make_encoder"):
        return changed
    encoder = change_factories(module.make_encoder, SparseFeedForward, _keep_unless_by_row)
    return changed.clone(make_encoder=encoder)


def _keep(factory: functools.partial) -> Mapping[str, Any]:
    router = factory.keywords["make_router"]
    if issubclass(router.func, ExpertChoiceRouter):
        raise ValueError(
            "model.router='expert_choice': an expert compares a token with later ones, so that "
            "texts have no probability token by token, and cannot be generated or scored; to do "
            "so train with another router, such as 'switch' or 'top2'"
        )
    return {"drops": False}


def _keep_unless_by_row(factory: functools.partial) -> Mapping[str, Any]:
    by_row = factory.keywords.get("expert_capacity") and not factory.keywords.get("group_size")
    return {} if by_row else _keep(factory)
