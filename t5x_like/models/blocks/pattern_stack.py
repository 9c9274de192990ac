"""A stack with a different attention pattern in each layer."""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import numpy as np
from jaxtyping import Array, Float, PyTree

from t5x_like.models.blocks.residual import PostNormBlock, PreNormBlock, Shared
from t5x_like.models.blocks.stack import Stack


class PatternBlock(PreNormBlock):
    """A pre-norm layer whose attention gets `per_layer`, its pattern, as `extra`."""

    def __call__(
        self, x: Float[Array, "B T D"], shared: Shared, per_layer: PyTree
    ) -> tuple[Float[Array, "B T D"], PyTree]:
        """Return the layer's output, and a `Collected` if `shared.collect` is not empty."""
        return super().__call__(x, dataclasses.replace(shared, extra=per_layer), None)


class PostNormPatternBlock(PatternBlock, PostNormBlock):
    """A post-norm layer whose attention gets `per_layer`, its pattern, as `extra`."""


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
