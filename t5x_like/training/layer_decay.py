"""Layer-wise learning-rate decay: layers closer to the input get smaller learning rates."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Float

from t5x_like.training.layer_places import below_top, by_path, path_of, towers
from t5x_like.training.task_parameters import HEAD


def scale_by_layer(decay: float, *, axes: Any, trained: Any = None) -> optax.GradientTransformation:
    """Multiply the updates of layer n of N by decay^(N + 1 - n).

    The embeddings (tokens, positions, projection) are layer 0, and the head is layer N + 1, with a
    factor of 1 (Clark et al. 2020, appendix B). Scanned and unrolled layers get the same factors.
    Each group of layers with shared parameters counts as one layer.

    Args:
        decay: above 0 and at most 1.
        axes: the logical axes of all parameters, a tree of PartitionSpecs.
        trained: a mask of the trained parameters, see `frozen.trainable`; None if all are trained.
            A completely frozen tower is ignored.

    Raises:
        ValueError: the decay is out of range, or the network does not have one tower and a head.
    """
    if not 0 < decay <= 1:
        raise ValueError(f"optimizer.layer_decay={decay} must be above 0 and at most 1")
    specs = by_path(axes)
    moving = dict.fromkeys(specs, True) if trained is None else by_path(trained)
    tower = _tower(specs, moving, decay=decay)
    if not any(path.startswith(f"{HEAD}/") for path in specs):
        raise ValueError(
            f"optimizer.layer_decay={decay} needs a network with a head, which is trained at the "
            f"full rate, and no parameter is under {HEAD!r}: set it to 1"
        )

    def scale(updates: Any, params: Any) -> Any:
        del params
        shapes = {path: update.shape for path, update in by_path(updates).items()}
        factors = _factors(decay, shapes, specs, tower=tower)
        return jax.tree.map_with_path(
            lambda keys, update: update * factors[path_of(keys)].astype(update.dtype), updates
        )

    return optax.stateless(scale)


def _tower(specs: Mapping[str, PartitionSpec], trained: Mapping[str, bool], *, decay: float) -> str:
    """Return the path of the only trained tower, for example "encoder/"."""
    found = towers([path for path in specs if trained[path]]) or towers(specs)
    if len(found) != 1:
        names = ", ".join(f"{tower}layers" for tower in sorted(found)) or "none"
        raise ValueError(
            f"optimizer.layer_decay={decay} needs a network with one tower of layers, and this one "
            f"has {names}: set it to 1"
        )
    return found.pop()


def _factors(
    decay: float,
    shapes: Mapping[str, tuple[int, ...]],
    specs: Mapping[str, PartitionSpec],
    *,
    tower: str,
) -> dict[str, Float[np.ndarray, "..."]]:
    """Return {path: factors that broadcast over the parameter}."""
    below = below_top(shapes, specs, tower=tower)
    embeddings = 1 + max(int(np.max(distance)) for distance in below.values())
    for path in shapes.keys() - below.keys():
        above = tower and path.startswith(tower) and not path.startswith(f"{tower}entrance/")
        below[path] = np.array(0 if above or path.startswith(f"{HEAD}/") else embeddings)
    return {path: np.power(decay, distance).astype(np.float32) for path, distance in below.items()}
