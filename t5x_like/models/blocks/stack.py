"""N layers of one block, scanned or looped, with or without rematerialization."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, PyTree

from t5x_like import partitioning
from t5x_like.models.attention.cores import KEPT
from t5x_like.models.compute import Compute, Loop
from t5x_like.names import choose

LOOPS: dict[str, None] = {"auto": None, "scan": None, "unroll": None}

# On a CPU layers in a row take a tenth to a fifth less time than a loop, and compiling each still
# takes seconds for as many (docs/performance.md).
_FEW = 24

REMAT_POLICIES: dict[str, Callable[..., bool] | None] = {
    "full": None,  # keep the layer's input alone
    "dots": jax.checkpoint_policies.checkpoint_dots,
    "dots_with_no_batch_dims": jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,
    # Queries, keys, values and what attention makes of them.
    "attention": jax.checkpoint_policies.save_only_these_names(KEPT),
    # The same, in the memory of the host until the backward pass.
    "attention_on_host": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[KEPT],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}


class Stack(nn.Module):
    """Apply `block(carry, shared, per_layer) -> (carry, per_layer_out)` N times.

    Attributes:
        make_block: factory of the block.
        layers: N.
        compute: its `loop` and `remat` are of these layers.
    """

    make_block: Callable[..., nn.Module]
    layers: int
    compute: Compute = Compute()

    @nn.compact
    def __call__(self, carry: PyTree, shared: PyTree, per_layer: PyTree) -> tuple[PyTree, PyTree]:
        """The last carry, and the layers' outputs.

        Args:
            carry, shared: any trees of arrays.
            per_layer: None, or any tree of arrays whose first axis is N for `scan` and `auto`,
                where each layer's part is copied, and a tuple of N trees for `unroll`, where it is
                not. `split` makes either of an array for all layers.

        Returns:
            The outputs per layer have the form of `per_layer`.

        Raises:
            ValueError: an unknown `loop` or `remat`, or a `per_layer` of other than N trees.
        """
        in_a_row = unrolls(self.compute.loop, self.layers)

        def apply(block: nn.Module, carry: Any, shared: Any, per_layer: Any) -> Any:
            return block(carry, shared, per_layer)

        if self.compute.remat != "none":
            # Inside a scan the compiler cannot merge the two computations anyway.
            policy = choose("model.remat", self.compute.remat, {"none": None, **REMAT_POLICIES})
            apply = nn.remat(apply, policy=policy, prevent_cse=in_a_row)
        if self.compute.loop != "unroll":
            scanned = nn.scan(
                apply,
                # "routing" and "assignment" are what sparse layers sow.
                variable_axes={"params": 0, "routing": 0, "assignment": 0},
                split_rngs={"params": True, "dropout": True},
                in_axes=(nn.broadcast, 0),
                length=self.layers,
                unroll=self.layers if in_a_row else 1,
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
        """A tree of arrays with a first axis of N in the form of `per_layer`."""
        if self.compute.loop != "unroll":
            return stacked
        return tuple(jax.tree.map(lambda x, n=n: x[n], stacked) for n in range(self.layers))

    def empty_cache(self, *, batch: int, slots: int) -> PyTree:
        """The blocks' empty caches, in the form of `per_layer`."""
        layer = self.make_block(parent=None).empty_cache(batch=batch, slots=slots)
        if self.compute.loop == "unroll":
            return (layer,) * self.layers
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (self.layers, *x.shape)), layer)


def unrolls(loop: Loop, layers: int) -> bool:
    """Whether a stack compiles each of its layers, in place of one for all.

    `auto` does so on a CPU for up to 24 layers. It decides while a function is traced, by the
    devices of the mesh.

    Raises:
        ValueError: an unknown `loop`.
    """
    choose("model.loop", loop, LOOPS)
    if loop == "auto":
        return layers <= _FEW and partitioning.platform() == "cpu"
    return loop == "unroll"


def logical_axes(boxed: PyTree) -> PyTree:
    """Return the logical axes of parameters, as `flax.linen.get_partition_spec`, a stack's too.

    A scanned stack names its first axis "layers" where the block names the others. A block of
    Flax's own modules names none: here its parameters are named ("layers", None, ...).

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
    """Convert the parameters of a scanned Stack ({"block": ...}) to those of a looped one."""
    return {f"layer_{n}": jax.tree.map(lambda x, n=n: x[n], params["block"]) for n in range(layers)}


def stack_layers(params: dict[str, Array]) -> PyTree:
    """Convert the parameters of a looped Stack ({"layer_0": ...}) to those of a scanned one."""
    layers = [params[f"layer_{n}"] for n in range(len(params))]
    return {"block": jax.tree.map(lambda *xs: jnp.stack(xs), *layers)}
