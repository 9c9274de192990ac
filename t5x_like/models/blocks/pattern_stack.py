"""A stack whose layers have attention patterns of their own."""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import numpy as np
from jaxtyping import Array, Float, PyTree

from t5x_like.models.blocks.residual import PostNormBlock
from t5x_like.models.blocks.shared import Shared


class PatternBlock(PostNormBlock):
    """A layer whose attention gets `per_layer`, its pattern, as `extra`."""

    def __call__(
        self, x: Float[Array, "B T D"], shared: Shared, per_layer: PyTree
    ) -> tuple[Float[Array, "B T D"], PyTree]:
        """The layer's output, and a `Collected` where `shared.collect` is not empty."""
        return super().__call__(x, dataclasses.replace(shared, extra=per_layer), None)


class PatternStack(nn.Module):
    """A `Stack` of `PatternBlock`s.

    Attributes:
        make_stack: factory of a `Stack`.
        choose: length -> the patterns of all layers, with the layers first, or None for dense
            attention.
    """

    make_stack: Callable[..., nn.Module]
    choose: Callable[[int], np.ndarray | None]

    def setup(self) -> None:
        self.stack = self.make_stack()

    def __call__(
        self, x: Float[Array, "B T D"], shared: Shared, per_layer: PyTree
    ) -> tuple[Float[Array, "B T D"], PyTree]:
        """The output of the last layer, and what `shared.collect` names of all layers."""
        del per_layer
        patterns = self.choose(x.shape[1])
        layers = None if patterns is None else self.stack.split(patterns)
        return self.stack(x, shared, layers)
