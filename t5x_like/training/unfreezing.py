"""Gradual unfreezing: layers start to train one after the other, from the top."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int

from t5x_like.training.layer_places import below_top, by_path, path_of, towers


class Unfreezing(NamedTuple):
    """The number of updates so far."""

    number: Int[Array, ""]


def unfreeze_from_top(steps: int, *, axes: Any) -> optax.GradientTransformation:
    """Train layer n of N from step floor((N - n) steps / N) on, counted from 0.

    Raffel et al. 2020, section 3.5.1 (after Howard & Ruder 2018): the top layers of encoder and
    decoder are trained first, and one more of each after every steps / N steps, with N the number
    of layers of the tower. Parameters outside of layers, such as the embeddings, are trained
    throughout.

    It is the last transformation of an optimizer: a frozen layer has an update of 0, but the
    optimizer's moments follow the gradients of all layers from the first step on.

    Args:
        steps: the number of steps until all layers are trained; 2^18 in the paper.
        axes: the logical axes of all parameters, a tree of PartitionSpecs.

    Raises:
        ValueError: the network has no layers.
    """
    specs = by_path(axes)
    found = towers(specs)
    if not found:
        raise ValueError(
            f"optimizer.unfreeze_steps={steps} needs a network with towers of layers, and this one "
            "has none: set it to 0"
        )

    def update(updates: Any, state: Unfreezing, params: Any = None) -> tuple[Any, Unfreezing]:
        del params
        shapes = {path: leaf.shape for path, leaf in by_path(updates).items()}
        begins: dict[str, np.ndarray] = {}
        for tower in found:
            below = below_top(shapes, specs, tower=tower)
            layers = max(int(np.max(places)) for places in below.values())
            begins |= {path: (places - 1) * steps // layers for path, places in below.items()}

        def moved(keys: Any, own: Array) -> Array:
            if (begin := begins.get(path_of(keys))) is None:
                return own
            # Adding -0.0 keeps every number bit for bit; adding 0.0 would turn -0.0 into 0.0.
            return jnp.where(begin <= state.number, own, -0.0).astype(own.dtype)

        updates = jax.tree.map_with_path(moved, updates)
        return updates, Unfreezing(optax.safe_increment(state.number))

    return optax.GradientTransformation(lambda params: Unfreezing(jnp.zeros([], jnp.int32)), update)
