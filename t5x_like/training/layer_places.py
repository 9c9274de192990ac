"""The layer that each parameter belongs to, for scanned, unrolled, grouped and shared layers."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

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
    """Return 0, 1, ... along the named axis, in a shape that broadcasts over `shape`."""
    place = names.index(axis)
    return np.arange(shape[place]).reshape(-1, *[1] * (len(shape) - place - 1))


def by_path(tree: Any) -> dict[str, Any]:
    """Return {path: leaf} of a tree."""
    return {path_of(keys): leaf for keys, leaf in jax.tree.leaves_with_path(tree)}


def path_of(keys: Any) -> str:
    """Return the path of a leaf, for example "encoder/final_norm/scale"."""
    return jax.tree_util.keystr(keys, simple=True, separator="/")
