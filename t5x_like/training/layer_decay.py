"""Layer-wise learning-rate decay: the closer a layer is to the input, the smaller its rate."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Float

# The layers of a tower: scanned under `block`, looped as `layer_<n>`, or stacked part by part
# (`SharedStack`). A `LayerGroup` has `block_<k>` in either.
_LAYER = re.compile(
    r"(?P<tower>(?:.+?/)?)layers/(?:block/|layer_(?P<n>\d+)/)?(?:block_(?P<k>\d+)/)?"
)


def scale_by_layer(
    decay: float, *, axes: Any, heads: str, trained: Any = None
) -> optax.GradientTransformation:
    """Multiply the updates of layer n of N by decay^(N + 1 - n).

    The embeddings, their positions and their projection are layer 0, and the head is layer N + 1,
    with a factor of 1 (Clark et al. 2020, appendix B). Scanned and looped layers get the same
    factors. Parameters that layers share, stacked by group, count as one layer for each group.

    Args:
        decay: above 0 and at most 1.
        axes: the logical axes of all parameters, a tree of PartitionSpecs.
        heads: the path of the heads in the parameters.
        trained: a mask of the trained parameters, see `frozen.trainable`; None if all are. A tower
            that is frozen as a whole does not count.

    Raises:
        ValueError: the decay is out of its range, or the network is not one tower with a head.
    """
    if not 0 < decay <= 1:
        raise ValueError(f"optimizer.layer_decay={decay} must be above 0 and at most 1")
    specs = _by_path(axes)
    moving = dict.fromkeys(specs, True) if trained is None else _by_path(trained)
    tower = _tower(specs, moving, decay=decay)
    if not any(path.startswith(f"{heads}/") for path in specs):
        raise ValueError(
            f"optimizer.layer_decay={decay} needs a network with a head, which is trained at the "
            f"full rate, and no parameter is under {heads!r}: set it to 1"
        )

    def scale(updates: Any, params: Any) -> Any:
        del params
        shapes = {path: update.shape for path, update in _by_path(updates).items()}
        factors = _factors(decay, shapes, specs, tower=tower, heads=heads)
        return jax.tree.map_with_path(
            lambda keys, update: update * factors[_path(keys)].astype(update.dtype), updates
        )

    return optax.stateless(scale)


def _tower(specs: Mapping[str, PartitionSpec], trained: Mapping[str, bool], *, decay: float) -> str:
    """The path of the tower, "encoder/" for example."""
    found = {path: match["tower"] for path in specs if (match := _LAYER.match(path))}
    towers = {tower for path, tower in found.items() if trained[path]} or set(found.values())
    if len(towers) != 1:
        names = ", ".join(f"{tower}layers" for tower in sorted(towers)) or "none"
        raise ValueError(
            f"optimizer.layer_decay={decay} needs a network with one tower of layers, and this one "
            f"has {names}: set it to 1"
        )
    return towers.pop()


def _factors(
    decay: float,
    shapes: Mapping[str, tuple[int, ...]],
    specs: Mapping[str, PartitionSpec],
    *,
    tower: str,
    heads: str,
) -> dict[str, Float[np.ndarray, "..."]]:
    """The factors of each parameter, to be broadcast over it."""
    below = _below_head(shapes, specs, tower=tower)
    embeddings = 1 + max(int(np.max(distance)) for distance in below.values())
    for path in shapes.keys() - below.keys():
        above = tower and path.startswith(tower) and not path.startswith(f"{tower}entrance/")
        below[path] = np.array(0 if above or path.startswith(f"{heads}/") else embeddings)
    return {path: np.power(decay, distance).astype(np.float32) for path, distance in below.items()}


def _below_head(
    shapes: Mapping[str, tuple[int, ...]], specs: Mapping[str, PartitionSpec], *, tower: str
) -> dict[str, np.ndarray]:
    """N + 1 - n for each layer n of the tower's parameters, to be broadcast over them."""
    found = {path: match for path in shapes if (match := _LAYER.match(path))}
    found = {path: match for path, match in found.items() if match["tower"] == tower}
    looped, grouped = (1 + max(int(match[key] or 0) for match in found.values()) for key in "nk")
    below = {}
    for path, match in found.items():
        names, shape = tuple(specs[path]), shapes[path]
        outer, layers = np.array(int(match["n"] or 0)), looped
        inner, blocks = np.array(int(match["k"] or 0)), grouped
        if "layers" in names:
            outer = _index(names, shape, "layers")
            layers = outer.size
        if "inner_layers" in names:
            inner = _index(names, shape, "inner_layers")
            blocks = inner.size
        below[path] = (layers - outer) * blocks - inner
    return below


def _index(names: tuple[str, ...], shape: tuple[int, ...], axis: str) -> np.ndarray:
    """0, 1, ... along the named axis, to be broadcast over the shape."""
    place = names.index(axis)
    return np.arange(shape[place]).reshape(-1, *[1] * (len(shape) - place - 1))


def _by_path(tree: Any) -> dict[str, Any]:
    return {_path(keys): leaf for keys, leaf in jax.tree.leaves_with_path(tree)}


def _path(keys: Any) -> str:
    return jax.tree_util.keystr(keys, simple=True, separator="/")
