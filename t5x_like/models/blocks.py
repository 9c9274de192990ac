"""One layer of a stack: sublayers, their norms and residuals."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
from jaxtyping import Array, Float, Int

from t5x_like.models.attention import KeyValues
from t5x_like.models.masks import AttentionMask


@flax.struct.dataclass
class Shared:
    """What every layer of a stack is given, the same for all.

    Attributes:
        mask: of the stack's own positions among themselves.
        bias: on the scores of self-attention, or None.
        positions: within each document, for schemes that act on queries and keys.
        memory, memory_mask: what cross-attention reads, or None where there is none or where
            the cache already holds its keys and values.
        slot: of the cache, where the first of the new positions is written.
        deterministic: no dropout.
    """

    mask: AttentionMask
    bias: Float[Array, "B H T S"] | None = None
    positions: Int[Array, "B T"] | None = None
    memory: Float[Array, "B S D"] | None = None
    memory_mask: AttentionMask | None = None
    slot: int | Int[Array, ""] = 0
    deterministic: bool = flax.struct.field(pytree_node=False, default=True)


@flax.struct.dataclass
class LayerCache:
    """One layer's keys and values: of the positions so far, and of the memory."""

    own: KeyValues
    memory: KeyValues | None = None


class PreNormBlock(nn.Module):
    """x + sublayer(norm(x)) for self-attention, cross-attention and feed-forward in turn.

    Serves encoders, decoders and decoder-only models: cross-attention is skipped where there is
    no memory. `make_x` is a factory of module x, here and in all parts.
    """

    make_norm: Callable[..., nn.Module]
    make_self_attention: Callable[..., nn.Module]
    make_feed_forward: Callable[..., nn.Module]
    make_cross_attention: Callable[..., nn.Module] | None = None
    dropout: float = 0.0

    def setup(self) -> None:
        self.self_attention_norm = self.make_norm()
        self.self_attention = self.make_self_attention()
        self.feed_forward_norm = self.make_norm()
        self.feed_forward = self.make_feed_forward()
        if self.make_cross_attention is not None:
            self.cross_attention_norm = self.make_norm()
            self.cross_attention = self.make_cross_attention()
        self.drop = nn.Dropout(self.dropout, broadcast_dims=(-2,))

    def __call__(
        self, x: Float[Array, "B T D"], shared: Shared, cache: LayerCache | None
    ) -> tuple[Float[Array, "B T D"], LayerCache | None]:
        """The layer's output, and its cache with these positions in it if one was given."""
        x, own = self._attend_to_own(x, shared, cache)
        x, memory = self._attend_to_memory(x, shared, cache)
        y = self._enter(x, self.feed_forward_norm)
        y = self.feed_forward(y, deterministic=shared.deterministic)
        x = self._leave(x, y, self.feed_forward_norm, shared)
        return x, None if cache is None else LayerCache(own=own, memory=memory)

    def empty_cache(self, *, batch: int, slots: int) -> LayerCache:
        """A cache for `slots` positions, before any and without a memory yet."""
        return LayerCache(
            own=self.make_self_attention(parent=None).empty_cache(batch=batch, slots=slots)
        )

    def _attend_to_own(
        self, x: Array, shared: Shared, cache: LayerCache | None
    ) -> tuple[Array, KeyValues]:
        y = self._enter(x, self.self_attention_norm)
        own = self.self_attention.keys_values(y, shared.positions)
        if cache is not None:
            own = cache.own.write(own, slot=shared.slot)
        y = self.self_attention(
            y,
            own,
            mask=shared.mask,
            bias=shared.bias,
            positions=shared.positions,
            deterministic=shared.deterministic,
        )
        return self._leave(x, y, self.self_attention_norm, shared), own

    def _attend_to_memory(
        self, x: Array, shared: Shared, cache: LayerCache | None
    ) -> tuple[Array, KeyValues | None]:
        if shared.memory is not None and self.make_cross_attention is not None:
            memory = self.cross_attention.keys_values(shared.memory)
        elif cache is not None and cache.memory is not None:
            memory = cache.memory
        else:
            return x, None
        y = self.cross_attention(
            self._enter(x, self.cross_attention_norm),
            memory,
            mask=shared.memory_mask,
            deterministic=shared.deterministic,
        )
        return self._leave(x, y, self.cross_attention_norm, shared), memory

    def _enter(self, x: Array, norm: nn.Module) -> Array:
        """What a sublayer reads of its input."""
        return norm(x)

    def _leave(self, x: Array, y: Array, norm: nn.Module, shared: Shared) -> Array:
        """What goes on from a sublayer with input x and output y."""
        del norm  # it was at the entrance
        return _constrain(x + self.drop(y, shared.deterministic))


class PostNormBlock(PreNormBlock):
    """norm(x + sublayer(x)): Vaswani et al. 2017, section 3.1."""

    def _enter(self, x: Array, norm: nn.Module) -> Array:
        return x

    def _leave(self, x: Array, y: Array, norm: nn.Module, shared: Shared) -> Array:
        return _constrain(norm(x + self.drop(y, shared.deterministic)))


def _constrain(x: Array) -> Any:
    axes = ("activation_batch", "activation_length", "activation_embed")
    return nn.with_logical_constraint(x, axes)
