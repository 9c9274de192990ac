"""A stack of layers with an entrance for its inputs, a position bias and a final norm."""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
from jaxtyping import PyTree

from t5x_like.models.blocks.residual import Shared, collect_layers
from t5x_like.models.compute import Compute, make_dropout


class Tower(nn.Module):
    """A stack of layers with an entrance, a position bias, a final norm and an exit.

    The carry of the layers may be any tree of arrays [B, T, ...], such as the two streams of XLNet
    (Yang et al. 2019): the entrance then makes the first carry, and the exit reads the last.

    Attributes:
        make_stack: factory of `stack(carry, shared, per_layer) -> (carry, per_layer_out)`.
        make_norm: factory of the norm after the last layer, or None if each layer ends in a norm.
        make_bias: factory of a relative position bias on the scores of all layers, or None.
        make_entrance: factory of `entrance(x, positions) -> carry`, or None if the first carry is
            x, the token embeddings.
        make_exit: factory of `exit(carry) -> x`, or None if the last carry is the output.
        make_extra: factory of `extra(shared) -> tree`, the arrays that all layers get as
            `shared.extra`, or None.
        compute: its `dropout` applies to every array of the first carry and to the normed output.
    """

    make_stack: Callable[..., nn.Module]
    make_norm: Callable[..., nn.Module] | None = None
    make_bias: Callable[..., nn.Module] | None = None
    make_entrance: Callable[..., nn.Module] | None = None
    make_exit: Callable[..., nn.Module] | None = None
    make_extra: Callable[..., nn.Module] | None = None
    compute: Compute = Compute()

    def setup(self) -> None:
        if self.make_entrance is not None:
            self.entrance = self.make_entrance()
        self.layers = self.make_stack()
        if self.make_exit is not None:
            self.exit = self.make_exit()
        if self.make_norm is not None:
            self.final_norm = self.make_norm()
        if self.make_bias is not None:
            self.relative_position_bias = self.make_bias()
        if self.make_extra is not None:
            self.extra = self.make_extra()
        self.drop = make_dropout(self.compute)

    def __call__(
        self, x: PyTree, shared: Shared, per_layer: PyTree = None
    ) -> tuple[PyTree, PyTree]:
        """Return the last layer's output after the final norm, and per-layer outputs.

        Args:
            x: the input of the entrance, or of the first layer: [B, T, D], or a tree.
            per_layer: per-layer inputs, such as caches, in the form that the stack takes.

        Returns:
            The output, and the per-layer outputs of the stack: the updated caches, if caches were
            given. If `shared.collect` is not empty, the `Collected` of all layers instead.
        """
        shared = self._complete(x, shared)
        carry = x if self.make_entrance is None else self.entrance(x, shared.positions)
        carry = jax.tree.map(lambda x: self.drop(x, shared.deterministic), carry)
        last, per_layer = self.layers(carry, shared, per_layer)
        if shared.collect:
            per_layer = collect_layers(shared.collect, carry, per_layer)
        x = last if self.make_exit is None else self.exit(last)
        if self.make_norm is not None:
            x = self.drop(self.final_norm(x), shared.deterministic)
        return x, per_layer

    def _complete(self, x: PyTree, shared: Shared) -> Shared:
        """Add the position bias and the `extra` arrays, which all layers share."""
        if self.make_bias is not None:
            queries = jax.tree.leaves(x)[0].shape[1]
            bias = self.relative_position_bias(
                queries=queries,
                keys=shared.mask.keys(queries),
                offset=shared.mask.first_slot,
                bidirectional=shared.mask.visibility != "causal",
            )
            shared = dataclasses.replace(shared, bias=bias)
        if self.make_extra is not None:
            shared = dataclasses.replace(shared, extra=self.extra(shared))
        return shared

    def empty_cache(self, *, batch: int, slots: int) -> PyTree:
        """Return the empty caches of all layers, for `Cache.layers`."""
        return self.make_stack(parent=None).empty_cache(batch=batch, slots=slots)
