"""A stack of layers with its input embeddings, its position bias and its last norm."""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
from jaxtyping import Array, Float, PyTree

from t5x_like.models.blocks.shared import Shared


class Tower(nn.Module):
    """A stack with what comes before it, positions or a position bias, and its norm after.

    Attributes:
        make_entrance: factory of `entrance(x, positions)`, what the first layer reads of the
            tokens' vectors, or None where it reads them as they are.
        make_norm: factory of the norm after the last layer, or None where layers end in one.
        make_bias: factory of a relative position bias, or None.
    """

    make_stack: Callable[..., nn.Module]
    make_norm: Callable[..., nn.Module] | None = None
    make_bias: Callable[..., nn.Module] | None = None
    make_entrance: Callable[..., nn.Module] | None = None
    dropout: float = 0.0

    def setup(self) -> None:
        if self.make_entrance is not None:
            self.entrance = self.make_entrance()
        self.layers = self.make_stack()
        if self.make_norm is not None:
            self.final_norm = self.make_norm()
        if self.make_bias is not None:
            self.relative_position_bias = self.make_bias()
        self.drop = nn.Dropout(self.dropout, broadcast_dims=(-2,))

    def __call__(
        self, x: Float[Array, "B T D"], shared: Shared, cache: PyTree = None
    ) -> tuple[Float[Array, "B T D"], PyTree]:
        """The normed output of the last layer, and the layers' caches if some were given."""
        if self.make_bias is not None:
            bias = self.relative_position_bias(
                queries=x.shape[1],
                keys=shared.mask.keys(x.shape[1]),
                offset=shared.mask.offset,
                bidirectional=shared.mask.visibility != "causal",
            )
            shared = dataclasses.replace(shared, bias=bias)
        if self.make_entrance is not None:
            x = self.entrance(x, shared.positions)
        x = self.drop(x, shared.deterministic)
        x, cache = self.layers(x, shared, cache)
        if self.make_norm is not None:
            x = self.drop(self.final_norm(x), shared.deterministic)
        return x, cache

    def empty_cache(self, *, batch: int, slots: int) -> PyTree:
        """The caches of all layers, as `models.cache.Cache` has them."""
        return self.make_stack(parent=None).empty_cache(batch=batch, slots=slots)
