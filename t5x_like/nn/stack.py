"""N layers of one block, scanned or unrolled, with or without rematerialization.

Also stacks whose layers alternate (`LayerGroup`) or have an attention pattern each.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, PyTree

from t5x_like import partitioning
from t5x_like.names import choose
from t5x_like.nn.attention.cores import CONTEXT, KEY, QUERY, VALUE
from t5x_like.nn.blocks import PostNormBlock, PreNormBlock, Shared
from t5x_like.nn.compute import Compute
from t5x_like.nn.linear import WI, WO

LOOPS: dict[str, None] = {"auto": None, "scan": None, "unroll": None}

# Up to this many layers are unrolled on a CPU and a GPU: they take a tenth to a quarter less time
# than a loop (docs/performance.md, docs/accelerators.md), and still compile within about a minute.
_FEW = 24

# What `remat` can keep by name: the results of projections, and the output of attention.
_ATTENTION = (QUERY, KEY, VALUE, CONTEXT)
REMAT_NAMES = (*_ATTENTION, WI, WO)
_ON_HOST = "@host"


def _keep(names: Sequence[str], *, on_host: Sequence[str] = ()) -> Callable[..., bool]:
    if not on_host:
        return jax.checkpoint_policies.save_only_these_names(*names)
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=names,
        names_which_can_be_offloaded=on_host,
        offload_src="device",
        offload_dst="pinned_host",
    )


REMAT_POLICIES: dict[str, Callable[..., bool] | None] = {
    "full": None,  # save only the layer's input
    "dots": jax.checkpoint_policies.checkpoint_dots,
    "dots_with_no_batch_dims": jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,
    # Save queries, keys, values and the output of attention.
    "attention": _keep(_ATTENTION),
    # The same, offloaded to host memory until the backward pass.
    "attention_on_host": _keep((), on_host=_ATTENTION),
}


def remat_policy(remat: str) -> Callable[..., bool] | None:
    """Return the policy of `jax.checkpoint` for `Compute.remat`.

    Args:
        remat: a name of REMAT_POLICIES; or names of REMAT_NAMES with commas between them, which are
            saved, those with "@host" in host memory: `query,key,value,wi@host`.

    Raises:
        ValueError: a name is unknown.
    """
    names = remat.split(",")
    if len(names) == 1 and remat.removesuffix(_ON_HOST) not in REMAT_NAMES:
        known = {"none": None, **REMAT_POLICIES, **dict.fromkeys(REMAT_NAMES)}
        return choose("model.remat", remat, known)
    for name in names:
        choose("model.remat", name.removesuffix(_ON_HOST), dict.fromkeys(REMAT_NAMES))
    on_host = [name.removesuffix(_ON_HOST) for name in names if name.endswith(_ON_HOST)]
    return _keep([name for name in names if not name.endswith(_ON_HOST)], on_host=on_host)


class Stack(nn.Module):
    """A block `block(carry, shared, per_layer) -> (carry, per_layer_out)`, applied N times.

    Attributes:
        make_block: factory of the block.
        layers: N.
        compute: its `loop` and `remat` apply to these layers.
    """

    make_block: Callable[..., nn.Module]
    layers: int
    compute: Compute = Compute()

    @nn.compact
    def __call__(self, carry: PyTree, shared: PyTree, per_layer: PyTree) -> tuple[PyTree, PyTree]:
        """Return the last carry, and the per-layer outputs.

        Args:
            carry, shared: any trees of arrays.
            per_layer: None; or, for `scan` and `auto`, a tree of arrays whose first axis is N, from
                which each layer's part is copied; or, for `unroll`, a tuple of N trees, which are
                not copied. `split` makes the right form from an array for all layers.

        Returns:
            The last carry, and the per-layer outputs in the form of `per_layer`.

        Raises:
            ValueError: `loop` or `remat` is unknown, or `per_layer` does not have N trees.
        """
        in_a_row = unrolls(self.compute, self.layers)

        def apply(block: nn.Module, carry: Any, shared: Any, per_layer: Any) -> Any:
            return block(carry, shared, per_layer)

        if self.compute.remat != "none":
            # Inside a scan the compiler cannot merge the two computations anyway.
            policy = remat_policy(self.compute.remat)
            apply = nn.remat(apply, policy=policy, prevent_cse=in_a_row)
        if self.compute.loop != "unroll":
            scanned = nn.scan(
                apply,
                # "routing" and "assignment" are sown by mixture-of-experts layers.
                variable_axes={"params": 0, "routing": 0, "assignment": 0},
                split_rngs={"params": True, "dropout": True},
                in_axes=(nn.broadcast, 0),
                length=self.layers,
                # Initialization has nothing to gain, and compiling each layer's draws takes longer
                # than compiling the training step.
                unroll=self.layers if in_a_row and not self.is_initializing() else 1,
                metadata_params={nn.PARTITION_NAME: "layers"},
            )
            return scanned(self.make_block(name="block"), carry, shared, per_layer)
        outs = []
        layers = (None,) * self.layers if per_layer is None else per_layer
        if type(layers) is not tuple or len(layers) != self.layers:
            raise ValueError(
                f"per_layer of a looped stack must be a tuple of {self.layers} trees, one for each "
                "layer: make it with `split`"
            )
        for n, layer in enumerate(layers):
            carry, out = apply(self.make_block(name=f"layer_{n}"), carry, shared, layer)
            outs.append(out)
        return carry, tuple(outs)

    def split(self, stacked: PyTree) -> PyTree:
        """Convert a tree of arrays with a first axis N to the form of `per_layer`."""
        if self.compute.loop != "unroll":
            return stacked
        return tuple(jax.tree.map(lambda x, n=n: x[n], stacked) for n in range(self.layers))

    def empty_cache(self, *, batch: int, slots: int) -> PyTree:
        """Return the blocks' empty caches, in the form of `per_layer`."""
        layer = self.make_block(parent=None).empty_cache(batch=batch, slots=slots)
        if self.compute.loop == "unroll":
            return (layer,) * self.layers
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (self.layers, *x.shape)), layer)


def unrolls(compute: Compute, layers: int) -> bool:
    """Return whether a stack compiles each of its layers rather than one layer in a loop.

    With `loop="auto"` it does so for up to 24 layers on a CPU and, without remat, on a GPU. It is
    decided when a function is traced, from the devices of the mesh.

    Raises:
        ValueError: `loop` is unknown.
    """
    choose("model.loop", compute.loop, LOOPS)
    if compute.loop != "auto" or layers > _FEW:
        return compute.loop == "unroll"
    platform = partitioning.platform()
    # On a GPU it saves the copies of stacked activations. With remat there are few, and a loop
    # needs less memory (docs/accelerators.md).
    return platform == "cpu" or (platform != "tpu" and compute.remat == "none")


def logical_axes(boxed: PyTree) -> PyTree:
    """Return the logical axes of parameters, like `flax.linen.get_partition_spec`.

    A scanned stack names its first axis "layers" only if the block names the other axes. Blocks of
    Flax's standard modules do not; here their parameters get the axes ("layers", None, ...).

    Args:
        boxed: the parameters of a network or their shapes, with their metadata.
    """
    return _name_layers(nn.get_partition_spec(boxed), nn.unbox(boxed))


def _name_layers(specs: PyTree, params: PyTree) -> PyTree:
    if not isinstance(specs, Mapping):
        return specs
    if set(specs) != {"block"} or len({x.shape[:1] for x in jax.tree.leaves(params)}) > 1:
        return {name: _name_layers(part, params[name]) for name, part in specs.items()}
    return jax.tree.map(
        lambda spec, x: spec or PartitionSpec("layers", *[None] * (x.ndim - 1)), specs, params
    )


def unstack_layers(params: PyTree, *, layers: int) -> PyTree:
    """Convert the parameters of a scanned stack, {"block": ...}, for an unrolled stack."""
    return {f"layer_{n}": jax.tree.map(lambda x, n=n: x[n], params["block"]) for n in range(layers)}


def stack_layers(params: dict[str, Array]) -> PyTree:
    """Convert the parameters of an unrolled stack, {"layer_0": ...}, for a scanned stack."""
    layers = [params[f"layer_{n}"] for n in range(len(params))]
    return {"block": jax.tree.map(lambda *xs: jnp.stack(xs), *layers)}


def rows_first(per_layer: Any) -> Float[Array, "B N M D"]:
    """Join the per-layer outputs of a `Stack`, arrays [B, M, D], with the rows first."""
    if isinstance(per_layer, tuple):
        return jnp.stack(per_layer, axis=1)
    return jnp.swapaxes(per_layer, 0, 1)


class LayerGroup(nn.Module):
    """g blocks applied in turn: a stack of N/g groups is N layers that alternate.

    Attributes:
        make_blocks: factories of the g blocks, in order.
    """

    make_blocks: tuple[Callable[..., nn.Module], ...]

    @nn.compact
    def __call__(self, carry: PyTree, shared: PyTree, per_layer: Any) -> tuple[PyTree, Any]:
        """Return the last carry, and a tuple of the outputs of the blocks.

        Args:
            carry, shared: any trees of arrays.
            per_layer: None, or a tuple of g trees, one for each block.
        """
        outs = []
        for n, make_block in enumerate(self.make_blocks):
            layer = None if per_layer is None else per_layer[n]
            carry, out = make_block(name=f"block_{n}")(carry, shared, layer)
            outs.append(out)
        return carry, tuple(outs)

    def empty_cache(self, *, batch: int, slots: int) -> Any:
        """Return a tuple of the blocks' empty caches."""
        return tuple(
            make_block(parent=None).empty_cache(batch=batch, slots=slots)
            for make_block in self.make_blocks
        )


class PatternBlock(PreNormBlock):
    """A pre-norm layer whose attention reads its pattern, `per_layer`, from `shared.extra`."""

    def __call__(
        self, x: Float[Array, "B T D"], shared: Shared, per_layer: PyTree
    ) -> tuple[Float[Array, "B T D"], PyTree]:
        """Return the layer's output, and a `Collected` if `shared.collect` is not empty."""
        return super().__call__(x, dataclasses.replace(shared, extra=per_layer), None)


class PostNormPatternBlock(PatternBlock, PostNormBlock):
    """A post-norm layer whose attention reads its pattern, `per_layer`, from `shared.extra`."""


class PatternStack(Stack, kw_only=True):  # type: ignore[call-arg]
    """A `Stack` of layers with attention patterns.

    Attributes:
        choose: a function from the length to the patterns [N, ...] of all layers, or to None for
            dense attention.
    """

    choose: Callable[[int], np.ndarray | None]

    @nn.compact
    def __call__(
        self, carry: Float[Array, "B T D"], shared: Shared, per_layer: PyTree
    ) -> tuple[Float[Array, "B T D"], PyTree]:
        """Return the output of the last layer, and the layers' `Collected` if there are any."""
        del per_layer
        patterns = self.choose(carry.shape[1])
        layers = None if patterns is None else self.split(patterns)
        return super().__call__(carry, shared, layers)
