"""Learning rates by layer: layer-wise decay, and gradual unfreezing from the top.

Also the transfer of the first layers. The layer of a parameter is found for scanned, unrolled,
grouped and shared layers.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from t5x_like.training.several_tasks import HEAD

# The layers of a tower: scanned under `block`, unrolled as `layer_<n>`, or stacked by group
# (`SharedStack`). A `LayerGroup` has `block_<k>` below these.
_LAYER = re.compile(
    r"(?P<tower>(?:.+?/)?)layers/(?:block/|layer_(?P<n>\d+)/)?(?:block_(?P<k>\d+)/)?"
)


def towers(paths: Iterable[str]) -> set[str]:
    """Return the paths of the towers that have layers, for example "encoder/"."""
    return {match["tower"] for path in paths if (match := _LAYER.match(path))}


def below_top(
    shapes: Mapping[str, tuple[int, ...]], specs: Mapping[str, PartitionSpec], *, tower: str
) -> dict[str, np.ndarray]:
    """Return N + 1 - n for the layer n = 1 to N of each parameter of a tower.

    The result is {path: array that broadcasts over the parameter}. Each group of layers with shared
    parameters counts as one layer.

    Args:
        shapes: {path: shape} of the parameters.
        specs: {path: logical axes} of the parameters.
        tower: the path of the tower, see `towers`.
    """
    matches = {path: match for path in shapes if (match := _LAYER.match(path))}
    matches = {path: match for path, match in matches.items() if match["tower"] == tower}
    looped, grouped = (1 + max(int(match[key] or 0) for match in matches.values()) for key in "nk")
    below = {}
    for path, match in matches.items():
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


def first_layers(params: Any, others: Any, *, axes: Any, layers: int) -> Any:
    """Return `params` with all layers of each tower but the first `layers` from `others`.

    Radford et al. 2018, section 5, figure 2 (left). Parameters outside of layers are from `params`.

    Args:
        params, others: two trees of parameters of one network.
        axes: the logical axes of the parameters.

    Raises:
        ValueError: the network has no layers, or a tower has fewer.
    """
    specs, leaves = by_path(axes), by_path(params)
    shapes = {path: leaf.shape for path, leaf in leaves.items()}
    first: dict[str, Any] = {}
    for tower in towers(shapes):
        below = below_top(shapes, specs, tower=tower)
        number = max(int(np.max(distance)) for distance in below.values())
        if layers > number:
            raise ValueError(
                f"initialize_layers={layers}: {tower}layers has {number}; set -1 for all"
            )
        first |= {path: distance > number - layers for path, distance in below.items()}
    if not first:
        raise ValueError(f"initialize_layers={layers}: this network has no layers; set -1")
    return jax.tree.map_with_path(
        lambda keys, read, other: jnp.where(first.get(path_of(keys), True), read, other),
        params,
        others,
    )


def _index(names: tuple[str, ...], shape: tuple[int, ...], axis: str) -> np.ndarray:
    """Return 0, 1, ... along the named axis, in a shape that broadcasts over `shape`."""
    position = names.index(axis)
    return np.arange(shape[position]).reshape(-1, *[1] * (len(shape) - position - 1))


def by_path(tree: Any) -> dict[str, Any]:
    """Return {path: leaf} of a tree."""
    return {path_of(keys): leaf for keys, leaf in jax.tree.leaves_with_path(tree)}


def path_of(keys: Any) -> str:
    """Return the path of a leaf, for example "encoder/final_norm/scale"."""
    return jax.tree_util.keystr(keys, simple=True, separator="/")


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
    tower_paths = towers([path for path in specs if trained[path]]) or towers(specs)
    if len(tower_paths) != 1:
        names = ", ".join(f"{tower}layers" for tower in sorted(tower_paths)) or "none"
        raise ValueError(
            f"optimizer.layer_decay={decay} needs a network with one tower of layers, and this one "
            f"has {names}: set it to 1"
        )
    return tower_paths.pop()


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
    tower_paths = towers(specs)
    if not tower_paths:
        raise ValueError(
            f"optimizer.unfreeze_steps={steps} needs a network with towers of layers, and this one "
            "has none: set it to 0"
        )

    def update(updates: Any, state: Unfreezing, params: Any = None) -> tuple[Any, Unfreezing]:
        del params
        shapes = {path: leaf.shape for path, leaf in by_path(updates).items()}
        begins: dict[str, np.ndarray] = {}
        for tower in tower_paths:
            below = below_top(shapes, specs, tower=tower)
            layers = max(int(np.max(from_top)) for from_top in below.values())
            begins |= {path: (from_top - 1) * steps // layers for path, from_top in below.items()}

        def moved(keys: Any, leaf: Array) -> Array:
            if (begin := begins.get(path_of(keys))) is None:
                return leaf
            # Adding -0.0 keeps every number bit for bit; adding 0.0 would turn -0.0 into 0.0.
            return jnp.where(begin <= state.number, leaf, -0.0).astype(leaf.dtype)

        updates = jax.tree.map_with_path(moved, updates)
        return updates, Unfreezing(optax.safe_increment(state.number))

    return optax.GradientTransformation(lambda params: Unfreezing(jnp.zeros([], jnp.int32)), update)
