"""A stack whose layers have attention patterns of their own."""

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
        """The layer's output, and a `Collected` where `shared.collect` is not empty."""
        return super().__call__(x, dataclasses.replace(shared, extra=per_layer), None)


class PostNormPatternBlock(PatternBlock, PostNormBlock):
    """A post-norm layer whose attention gets `per_layer`, its pattern, as `extra`."""


class PatternStack(Stack, kw_only=True):  # type: ignore[call-arg]
    """A `Stack` of layers with patterns.

    Attributes:
        choose: length -> the patterns of all layers, with the layers first, or None for dense
            attention.
    """

    choose: Callable[[int], np.ndarray | None]

    @nn.compact
    def __call__(
        self, carry: Float[Array, "B T D"], shared: Shared, per_layer: PyTree
    ) -> tuple[Float[Array, "B T D"], PyTree]:
        """The output of the last layer, and what `shared.collect` names of all layers."""
        del per_layer
        patterns = self.choose(carry.shape[1])
        layers = None if patterns is None else self.split(patterns)
        return super().__call__(carry, shared, layers)
