"""Parallel layers: attention and feed-forward have the same input (GPT-J, GPT-NeoX, PaLM)."""

from collections.abc import Callable

import flax.linen as nn
from jaxtyping import Array, Float

from t5x_like.models.attention.cache import LayerCache
from t5x_like.models.blocks.residual import (
    Collected,
    PreNormBlock,
    Shared,
    constrain,
    refuse_cross_attention,
    self_attend,
)
from t5x_like.models.compute import Compute, make_dropout


class ParallelBlock(nn.Module):
    """x + feed_forward(norm(x)) + attention(norm(x)), with one norm.

    Chowdhery et al. 2022, section 2, "Parallel Layers". With tensor parallelism, devices then
    reduce one output per layer instead of two. Dropout applies to the sum of both sublayers.
    """

    make_norm: Callable[..., nn.Module]
    make_self_attention: Callable[..., nn.Module]
    make_feed_forward: Callable[..., nn.Module]
    compute: Compute = Compute()

    def setup(self) -> None:
        self.norm = self.make_norm()
        self.self_attention = self.make_self_attention()
        self.feed_forward = self.make_feed_forward()
        self.drop = make_dropout(self.compute)

    def __call__(
        self, x: Float[Array, "B T D"], shared: Shared, cache: LayerCache | None
    ) -> tuple[Float[Array, "B T D"], LayerCache | Collected | None]:
        """Return the layer's output, and the updated cache if a cache was given.

        If `shared.collect` is not empty, a `Collected` is returned instead of the cache.
        """
        y = self.norm(x)
        read, own, scores = self_attend(self.self_attention, y, shared, cache)
        y = read + self.feed_forward(y, tokens=shared.tokens, deterministic=shared.deterministic)
        x = constrain(x + self.drop(y, shared.deterministic))
        if shared.collect:
            return x, shared.collected(x, scores)
        return x, None if own is None else LayerCache(own=own)

    def empty_cache(self, *, batch: int, slots: int) -> LayerCache:
        """Make an empty cache for `slots` positions."""
        return LayerCache(
            own=self.make_self_attention(parent=None).empty_cache(batch=batch, slots=slots)
        )


class TwoNormParallelBlock(PreNormBlock):
    """x + attention(norm_1(x)) + feed_forward(norm_2(x)): Black et al. 2022, section 2.1.2.

    Its parameters have the structure of a `PreNormBlock` without cross-attention, which this block
    does not support.
    """

    def setup(self) -> None:
        refuse_cross_attention(self)
        super().setup()

    def __call__(
        self, x: Float[Array, "B T D"], shared: Shared, cache: LayerCache | None
    ) -> tuple[Float[Array, "B T D"], LayerCache | Collected | None]:
        """Return the layer's output and the cache, see `ParallelBlock`."""
        y, own, scores = self_attend(
            self.self_attention, self.self_attention_norm(x), shared, cache
        )
        x = constrain(self._feed_forward(x, shared) + self.drop(y, shared.deterministic))
        if shared.collect:
            return x, shared.collected(x, scores)
        return x, None if own is None else LayerCache(own=own)
