"""Gradual unfreezing: the layers of a network are trained one more at a time, from the top."""

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
    """Let layer n of N change from step floor((N - n) steps / N) on, counted from 0.

    Raffel et al. 2020, section 3.5.1 (after Howard & Ruder 2018): the top layers of encoder and
    decoder are trained first, and one more of each after every steps / N steps; each tower has its
    own N. What is in no layer, such as the embeddings, is trained throughout.

    It is the last part of an optimizer: a frozen layer has an update of 0, and the moments of the
    optimizer follow the gradients of all layers from the first step on.

    Args:
        steps: over which the layers are unfrozen, 2^18 in the paper.
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
            # Any number plus -0.0 is that number bit for bit; -0.0 + 0.0 would be 0.0.
            return jnp.where(begin <= state.number, own, -0.0).astype(own.dtype)

        updates = jax.tree.map_with_path(moved, updates)
        return updates, Unfreezing(optax.safe_increment(state.number))

    return optax.GradientTransformation(lambda params: Unfreezing(jnp.zeros([], jnp.int32)), update)
