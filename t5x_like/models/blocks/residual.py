"""Transformer layers: sublayers with norms and residual connections."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float

from t5x_like.models.attention.cache import KeyValues, LayerCache
from t5x_like.models.blocks.shared import Collected, Shared
from t5x_like.models.compute import Compute
from t5x_like.models.dropout import make_dropout


class PreNormBlock(nn.Module):
    """x + sublayer(norm(x)) for self-attention, cross-attention and feed-forward in turn.

    For encoders, decoders and decoder-only models: without an encoder's output there is no
    cross-attention. `make_x` is a factory of module x, here and in all parts.

    Attributes:
        compute: its `dropout` is of the sublayers' outputs.
    """

    make_norm: Callable[..., nn.Module]
    make_self_attention: Callable[..., nn.Module]
    make_feed_forward: Callable[..., nn.Module]
    make_cross_attention: Callable[..., nn.Module] | None = None
    compute: Compute = Compute()

    def setup(self) -> None:
        self.self_attention_norm = self.make_norm()
        self.self_attention = self.make_self_attention()
        self.feed_forward_norm = self.make_norm()
        self.feed_forward = self.make_feed_forward()
        if self.make_cross_attention is not None:
            self.cross_attention_norm = self.make_norm()
            self.cross_attention = self.make_cross_attention()
        self.drop = make_dropout(self.compute)

    def __call__(
        self, x: Float[Array, "B T D"], shared: Shared, cache: LayerCache | None
    ) -> tuple[Float[Array, "B T D"], LayerCache | Collected | None]:
        """The layer's output, and its cache with these positions in it if one was given.

        Where `shared.collect` is not empty, a `Collected` takes the place of the cache.
        """
        x, own, scores = self._self_attend(x, shared, cache)
        x, memory, cross_scores = self._cross_attend(x, shared, cache)
        x = self._feed_forward(x, shared)
        if shared.collect:
            return x, shared.collected(x, scores, cross_scores)
        return x, None if own is None else LayerCache(own=own, memory=memory)

    def empty_cache(self, *, batch: int, slots: int) -> LayerCache:
        """An empty cache for `slots` positions, without the encoder's output."""
        return LayerCache(
            own=self.make_self_attention(parent=None).empty_cache(batch=batch, slots=slots)
        )

    def _self_attend(
        self, x: Array, shared: Shared, cache: LayerCache | None
    ) -> tuple[Array, KeyValues | None, Array | None]:
        y = self._sublayer_input(x, self.self_attention_norm)
        y, own, scores = self_attend(self.self_attention, y, shared, cache)
        return self._sublayer_output(x, y, self.self_attention_norm, shared), own, scores

    def _cross_attend(
        self, x: Array, shared: Shared, cache: LayerCache | None
    ) -> tuple[Array, KeyValues | None, Array | None]:
        if shared.memory is not None and self.make_cross_attention is not None:
            memory = self.cross_attention.keys_values(shared.memory)
        elif cache is not None and cache.memory is not None:
            memory = cache.memory
        else:
            return x, None, None
        y = self._sublayer_input(x, self.cross_attention_norm)
        # Beams of one prompt are queries of one row, and read its keys and values once.
        prompts = memory.key.shape[0]
        y, scores = self.cross_attention.attend(
            y.reshape(prompts, -1, y.shape[-1]),
            memory,
            mask=shared.memory_mask,
            deterministic=shared.deterministic,
            with_scores=shared.with_scores,
        )
        y = y.reshape(x.shape)
        return self._sublayer_output(x, y, self.cross_attention_norm, shared), memory, scores

    def _feed_forward(self, x: Array, shared: Shared) -> Array:
        """The residual path after what follows attention."""
        y = self._sublayer_input(x, self.feed_forward_norm)
        y = self.feed_forward(y, tokens=shared.tokens, deterministic=shared.deterministic)
        return self._sublayer_output(x, y, self.feed_forward_norm, shared)

    def _sublayer_input(self, x: Array, norm: nn.Module) -> Array:
        """The input of a sublayer, from the residual path x."""
        return norm(x)

    def _sublayer_output(self, x: Array, y: Array, norm: nn.Module, shared: Shared) -> Array:
        """The residual path after a sublayer with output y."""
        del norm  # pre-norm: it was applied to the input
        return constrain(x + self.drop(y, shared.deterministic))


class PostNormBlock(PreNormBlock):
    """norm(x + sublayer(x)): Vaswani et al. 2017, section 3.1."""

    def _sublayer_input(self, x: Array, norm: nn.Module) -> Array:
        return x

    def _sublayer_output(self, x: Array, y: Array, norm: nn.Module, shared: Shared) -> Array:
        return constrain(norm(x + self.drop(y, shared.deterministic)))


def refuse_cross_attention(block: PreNormBlock) -> None:
    """Refuse a factory that a block without cross-attention would ignore.

    Raises:
        ValueError: `make_cross_attention` is not None.
    """
    if block.make_cross_attention is not None:
        raise ValueError(
            f"a {type(block).__name__} has no cross-attention: leave make_cross_attention out, or "
            "take a PreNormBlock or a PostNormBlock"
        )


def self_attend(
    attention: Any,
    x: Float[Array, "B T D"],
    shared: Shared,
    cache: LayerCache | None,
    *,
    context: Float[Array, "B T D"] | None = None,
) -> tuple[Float[Array, "B T D"], KeyValues | None, Float[Array, "B H T S"] | None]:
    """Self-attention: its output, the cache if there is one, and the scores if they are collected.

    Args:
        context: the source of the keys and values, if not x.

    Raises:
        ValueError: a cache and something to collect: both are outputs of the layer.
    """
    if shared.collect and cache is not None:
        raise ValueError(
            f"collect={shared.collect!r} needs a forward pass of whole texts, without a key-value "
            "cache"
        )
    seen, mask, own = attention.update_cache(
        attention.keys_values(x if context is None else context, shared.positions),
        None if cache is None else cache.own,
        mask=shared.mask,
        first=shared.first,
    )
    y, scores = attention.attend(
        x,
        seen,
        mask=mask,
        bias=shared.bias,
        positions=shared.positions,
        extra=shared.extra,
        deterministic=shared.deterministic,
        with_scores=shared.with_scores,
    )
    return y, own, scores


def constrain(x: Float[Array, "B T D"]) -> Any:
    """Constrain x to the sharding of the residual path."""
    axes = ("activation_batch", "residual_length", "activation_embed")
    return nn.with_logical_constraint(x, axes)
