"""LoRA: low-rank matrices beside frozen kernels (Hu et al. 2021, "LoRA: Low-Rank Adaptation").

A linear layer with kernel W computes x W + (alpha / rank) (x A) B. A and B are parameters beside
the kernel, `lora_a` and `lora_b`, in networks of every system: `Linear` multiplies by them if they
are there. `Linear` has no factor: it reads B times alpha / rank (`scaled`).
"""

import fnmatch
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree

from t5x_like.names import hint
from t5x_like.nn.linear import LORA_A, LORA_B, Linear

_SHOWN = 8  # the most layers in an error message


class Axes(NamedTuple):
    """The number of axes of a linear layer's kernel: inputs and outputs."""

    inputs: int
    outputs: int


def linear_layers(network: nn.Module, params: PyTree) -> dict[str, Axes]:
    """Return the linear layers of a network by path, such as `decoder/layers/block/.../query`.

    They are found by tracing the network's initialization. A block that is applied as a function
    (ALBERT's) knows only the last parts of its layers' paths, which complete paths end with.

    Args:
        params: the parameters or their shapes.
    """
    traced: dict[str, Axes] = {}

    def note(
        call: Any, arguments: Any, keywords: Any, context: nn.module.InterceptorContext
    ) -> Any:
        layer = context.module
        if isinstance(layer, Linear) and context.method_name == "__call__":
            traced["/".join(layer.path)] = Axes(layer.contract, len(layer.features))
        return call(*arguments, **keywords)

    with nn.intercept_methods(note):
        jax.eval_shape(lambda: network.init(jax.random.key(0), network.example_batch()))
    paths = flax.traverse_util.flatten_dict(params, sep="/")
    layers = [path.removesuffix("/kernel") for path in paths if path.endswith("/kernel")]
    ends = {path: axes for path, axes in traced.items() if path not in layers}
    return {
        layer: axes
        for layer in layers
        for path, axes in (ends if layer not in traced else {layer: traced[layer]}).items()
        if f"/{layer}".endswith(f"/{path}")
    }


def choose_layers(
    layers: Iterable[str], targets: Sequence[str], *, frozen: Sequence[str] = ()
) -> list[str]:
    """Return the paths of the layers that get LoRA matrices.

    Args:
        layers: the paths of all linear layers.
        targets: names of layers, or of modules around them, anywhere in a path; "*" matches any
            text: `query`, `self_attention/value`, `*attention`, `*`.
        frozen: paths of modules whose layers get none, such as a teacher.

    Raises:
        ValueError: a target matches no layer.
    """
    layers = sorted(
        p for p in layers if not any(f"{p}/".startswith(f"{prefix}/") for prefix in frozen)
    )

    def chosen(path: str, target: str) -> bool:
        return fnmatch.fnmatchcase(f"/{path}/", f"*/{target}/*")

    for target in targets:
        if not any(chosen(path, target) for path in layers):
            parts = {part for path in layers for part in path.split("/")}
            near = hint(target, parts).partition(" Allowed: ")[0]
            more = f", ... ({len(layers)} in all)" if len(layers) > _SHOWN else ""
            raise ValueError(
                f"lora.targets has {target!r}, but no linear layer has this name.{near} The linear "
                f"layers are {', '.join(layers[:_SHOWN])}{more}"
            )
    return [path for path in layers if any(chosen(path, target) for target in targets)]


def extend(
    shapes: PyTree, axes: PyTree, layers: Mapping[str, Axes], *, rank: int
) -> tuple[PyTree, PyTree]:
    """Add the matrices of some layers to the parameters' shapes and logical axes.

    Kernels [N..., inputs, outputs] get A [N..., inputs, rank] and B [N..., rank, outputs], with
    N... the layers that are stacked. They are sharded like the kernel, and not over the rank.

    Args:
        shapes: the shapes of the parameters (ShapeDtypeStruct).
        axes: PartitionSpecs of logical axis names.
        layers: the layers by path.
    """
    flat, specs = (flax.traverse_util.flatten_dict(tree, sep="/") for tree in (shapes, axes))
    for path, (inputs, outputs) in layers.items():
        kernel, spec = flat[f"{path}/kernel"], specs[f"{path}/kernel"]
        stacked = len(kernel.shape) - inputs - outputs
        middle = stacked + inputs
        for name, shape, matrix_axes in (
            (LORA_A, (*kernel.shape[:middle], rank), (*spec[:middle], None)),
            (
                LORA_B,
                (*kernel.shape[:stacked], rank, *kernel.shape[middle:]),
                (*spec[:stacked], None, *spec[middle:]),
            ),
        ):
            flat[f"{path}/{name}"] = jax.ShapeDtypeStruct(shape, jnp.float32)
            specs[f"{path}/{name}"] = PartitionSpec(*matrix_axes)
    extended, extended_axes = (
        flax.traverse_util.unflatten_dict(tree, sep="/") for tree in (flat, specs)
    )
    return extended, extended_axes


def initialize(params: PyTree, shapes: PyTree, *, seed: int) -> PyTree:
    """Add the matrices that `params` lacks: A random, and B zero, so that their product is 0.

    A is uniform in +-1 / sqrt(inputs), as in the authors' code and in PEFT; the paper (section 4.1)
    has a Gaussian distribution, without its variance.

    Args:
        params: parameters with the structure of `shapes`, perhaps without some matrices.
    """
    flat, wanted = (flax.traverse_util.flatten_dict(tree, sep="/") for tree in (params, shapes))
    for path, leaf in wanted.items():
        layer, _, name = path.rpartition("/")
        if path in flat or not is_matrix(path):
            continue
        if name == LORA_B:
            flat[path] = jnp.zeros(leaf.shape, leaf.dtype)
            continue
        stacked = _stacked(*(wanted[f"{layer}/{part}"] for part in ("kernel", LORA_A, LORA_B)))
        bound = math.prod(leaf.shape[stacked:-1]) ** -0.5
        key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(path.encode()))
        flat[path] = jax.random.uniform(key, leaf.shape, leaf.dtype, -bound, bound)
    return flax.traverse_util.unflatten_dict(flat, sep="/")


def scale_of(*, rank: int, alpha: float) -> float:
    """Return the factor of the product A B."""
    return alpha / rank


def is_matrix(path: str) -> bool:
    """Return whether a parameter is an A or a B."""
    return path.rpartition("/")[2] in (LORA_A, LORA_B)


def scaled(params: PyTree, *, scale: float) -> PyTree:
    """Multiply every B by `scale`, alpha / rank: the parameters as the network reads them."""

    def times(keys: Any, leaf: Any) -> Any:
        return leaf * scale if jax.tree_util.keystr(keys[-1:], simple=True) == LORA_B else leaf

    return jax.tree.map_with_path(times, params)


def beside(wanted: Mapping[str, Any], matrices: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters to read for `merge`: kernels in float32, and the matrices of all.

    Args:
        wanted: the wanted parameters by path (ShapeDtypeStruct), perhaps with matrices.
        matrices: all matrices that the folder has.
    """
    kernels = {
        path: leaf.update(dtype=jnp.float32)
        for path, leaf in wanted.items()
        if _needs_product(path, wanted, matrices)
    }
    meshes = [leaf.sharding.mesh for leaf in wanted.values() if leaf.sharding is not None]
    everywhere = NamedSharding(meshes[0], PartitionSpec()) if meshes else None
    read = {path: leaf.update(sharding=everywhere) for path, leaf in matrices.items()}
    return {**read, **wanted, **kernels}


def merge(arrays: Mapping[str, Any], wanted: Mapping[str, Any], *, scale: float) -> dict[str, Any]:
    """Return the wanted parameters, with the product added to kernels whose matrices are not.

    Args:
        arrays: the result of `beside`, as arrays.
    """
    params = {}
    for path, leaf in wanted.items():
        params[path] = arrays[path]
        if _needs_product(path, wanted, arrays):
            a, b = (arrays[f"{path.rpartition('/')[0]}/{name}"] for name in (LORA_A, LORA_B))
            params[path] = _merged(arrays[path], a, b, scale, leaf.dtype, leaf.sharding)
    return params


def _needs_product(path: str, wanted: Mapping[str, Any], held: Mapping[str, Any]) -> bool:
    """Return whether a parameter is a kernel with matrices in `held` that are not wanted."""
    layer, _, name = path.rpartition("/")
    return name == "kernel" and f"{layer}/{LORA_A}" in held and f"{layer}/{LORA_A}" not in wanted


def _merged(kernel: Array, a: Array, b: Array, scale: float, dtype: Any, sharding: Any) -> Array:
    """Return a kernel with its product, in the dtype and sharding of a wanted parameter."""
    compute = jax.jit(lambda *xs: merged(*xs, scale=scale).astype(dtype), out_shardings=sharding)
    return compute(kernel, a, b)


def merged(
    kernel: Float[Array, "..."], a: Float[Array, "..."], b: Float[Array, "..."], *, scale: float
) -> Float[Array, "..."]:
    """Return W + scale A B, in float32; for the shapes see `extend`."""
    stacked = _stacked(kernel, a, b)
    number, rank = kernel.shape[:stacked], a.shape[-1]
    a, b = (x.astype(jnp.float32) for x in (a, b))
    product = jnp.matmul(
        a.reshape(*number, -1, rank),
        b.reshape(*number, rank, -1),
        precision=jax.lax.Precision.HIGHEST,
    )
    return kernel.astype(jnp.float32) + scale * product.reshape(kernel.shape)


def _stacked(kernel: Any, a: Any, b: Any) -> int:
    """Return the number of axes that number layers, before a kernel's inputs and outputs."""
    return len(a.shape) + len(b.shape) - len(kernel.shape) - 2
