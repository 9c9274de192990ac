"""Cross-layer parameter sharing: N layers that share all or some of their parameters."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from t5x_like.models.blocks.stack import REMAT_POLICIES, Loop, unrolls
from t5x_like.names import choose


class SharedStack(nn.Module):
    """Apply a block N times, with parameters shared across layers (Lan et al. 2019, section 3.1).

    The N layers form G groups of N/G. The layers of a group share the parameters of the parts that
    are shared, and have their own in the others. A shared parameter has the shape [G, I, ...],
    another one [N, I, ...]; the gradient of a shared one is the sum over its uses.

    The loop over layers closes over shared parameters and scans the others. Linen's `scan` can only
    do either for a whole collection, so the block is applied as a function.

    Attributes:
        make_block: factory of the block, `block(carry, shared, per_layer) -> (carry, out)`.
        layers: N.
        groups: G, which divides N.
        inner: I, the number of blocks in a layer, each with parameters of its own.
        parts: the submodules of the block that are shared.
        loop: `scan` compiles one layer, `unroll` each, `auto` what is faster (`stack.unrolls`); the
            parameters have the same shapes.
        remat: what the backward pass recomputes: `none`, or a name in stack.REMAT_POLICIES.
    """

    make_block: Callable[..., nn.Module]
    layers: int
    parts: tuple[str, ...]
    groups: int = 1
    inner: int = 1
    loop: Loop = "auto"
    remat: str = "none"

    @nn.compact
    def __call__(self, carry: PyTree, shared: PyTree, per_layer: PyTree) -> tuple[PyTree, PyTree]:
        """The last carry, and the blocks' outputs [N * I, ...]; `per_layer` is as long.

        Raises:
            ValueError: the groups do not divide the layers, or an unknown part, `loop` or `remat`.
        """
        if self.layers % self.groups:
            raise ValueError(
                f"model.groups={self.groups} must divide model.layers={self.layers}, so that all "
                "groups have the same size"
            )
        block = self.make_block(parent=None)
        sizes = self.groups, self.layers // self.groups, self.inner
        tree = jax.tree.map(lambda x: x.reshape(*sizes, *x.shape[1:]), per_layer)
        params = self._parameters(
            lambda key: block.init(key, carry, shared, jax.tree.map(lambda x: x[0], per_layer))
        )
        key = self.make_rng("dropout") if self.has_rng("dropout") else None
        keys = None if key is None else jax.random.split(key, sizes)

        def apply(carry: PyTree, params: PyTree, layer: PyTree, key: Array | None) -> Any:
            rngs = None if key is None else {"dropout": key}
            return block.apply({"params": params}, carry, shared, layer, rngs=rngs)

        carry, outs = self._run(apply, carry, params, (tree, keys))
        return carry, jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), outs)

    def split(self, stacked: PyTree) -> PyTree:
        """A tree of arrays with a first axis of N * I in the form of `per_layer`: the same."""
        return stacked

    def empty_cache(self, *, batch: int, slots: int) -> PyTree:
        """The blocks' empty caches, [N * I, ...]."""
        block = self.make_block(parent=None).empty_cache(batch=batch, slots=slots)
        number = self.layers * self.inner
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (number, *x.shape)), block)

    def _run(self, apply: Callable[..., Any], carry: PyTree, params: PyTree, xs: PyTree) -> Any:
        """Run the blocks in nested loops over groups, layers and the blocks of a layer."""
        in_a_row = unrolls(self.loop, self.layers * self.inner)
        if self.remat != "none":
            policy = choose("model.remat", self.remat, {"none": None, **REMAT_POLICIES})
            apply = jax.checkpoint(apply, policy=policy, prevent_cse=in_a_row)
        scan = functools.partial(jax.lax.scan, unroll=in_a_row)
        own = {
            part: jax.tree.map(lambda x: x.reshape(self.groups, -1, *x.shape[1:]), tree)
            for part, tree in params.items()
            if part not in self.parts
        }

        def group(carry: PyTree, xs: Any) -> Any:
            same, own, rest = xs

            def layer(carry: PyTree, xs: Any) -> Any:
                params = same | xs[0]
                return scan(lambda c, xs: apply(c, *xs), carry, (params, *xs[1]), length=self.inner)

            return scan(layer, carry, (own, rest), length=self.layers // self.groups)

        same = {part: params[part] for part in self.parts}
        return scan(group, carry, (same, own, xs), length=self.groups)

    def _parameters(self, init: Callable[[Array], PyTree]) -> PyTree:
        """The parameters by part of the block; initialized where they do not exist yet."""
        if not self.is_initializing():
            return nn.unbox(self.variables["params"])
        names = tuple(jax.eval_shape(lambda: init(jax.random.key(0)))["params"])
        for part in self.parts:
            choose("part of the block to share", part, dict.fromkeys(names))

        def stacked(key: Array, part: str) -> PyTree:
            copies = self.groups if part in self.parts else self.layers
            keys = jax.random.split(key, (copies, self.inner))
            made = jax.vmap(jax.vmap(lambda key: init(key)["params"][part]))(keys)
            for axis in ("inner_layers", "layers"):
                made = nn.meta.add_axis(made, 0, {nn.PARTITION_NAME: axis})
            return made

        return {part: self.param(part, stacked, part) for part in names}
