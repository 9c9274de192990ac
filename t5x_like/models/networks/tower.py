"""A stack of layers with its input embeddings, its position bias and its last norm."""

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
    (Yang et al. 2019): then the entrance makes the first carry and the exit reads the last.

    Attributes:
        make_stack: factory of `stack(carry, shared, per_layer) -> (carry, per_layer_out)`.
        make_norm: factory of the norm after the last layer, or None where layers end in one.
        make_bias: factory of a relative position bias on the scores of all layers, or None.
        make_entrance: factory of `entrance(x, positions) -> carry`, or None where x, the embeddings
            of the tokens, is the first carry.
        make_exit: factory of `exit(carry) -> x`, or None where the last carry is the output.
        make_extra: factory of `extra(shared) -> tree`, the arrays that all layers get as
            `shared.extra`, or None.
        compute: its `dropout` is of every array of the first carry and of the normed output.
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
        """The output of the last layer, after the final norm, and the layers' own outputs.

        Args:
            x: the input of the entrance, or of the first layer: [B, T, D], or a tree.
            per_layer: an input of each layer, such as its cache, in the form that the stack takes.

        Returns:
            The second is the layers' outputs, as the stack returns them: caches, if some were
            given. Where `shared.collect` is not empty it is the `Collected` of all layers.
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
        """Add the position bias and the arrays that all layers share."""
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
        """The empty caches of all layers, for `Cache.layers`."""
        return self.make_stack(parent=None).empty_cache(batch=batch, slots=slots)
