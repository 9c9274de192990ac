"""Transformer layers: sublayers with norms and residual connections, and what layers share."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from t5x_like.models.attention.cache import KeyValues, LayerCache
from t5x_like.models.attention.masks import AttentionMask
from t5x_like.models.attention.relative_buckets import RelativeBias
from t5x_like.models.compute import Compute, make_dropout
from t5x_like.names import choose

COLLECTABLE = ("hidden_states", "attention_scores")


@flax.struct.dataclass
class Collected:
    """Hidden states and attention scores: of one layer from a block, of N layers from a tower.

    Attributes:
        hidden_states: the carry after each layer, and before these the input of layer 0: [N + 1,
            B, T, D], or a tree of such arrays where the carry is a tree. No final norm is applied.
        attention_scores: scores of self-attention before the softmax, float32, scaled, with the
            position bias; `attention.cores.MASKED` where the mask hides a key.
        cross_attention_scores: the same of attention to the encoder's output.
    """

    hidden_states: PyTree = None
    attention_scores: Float[Array, "N B H T S"] | None = None
    cross_attention_scores: Float[Array, "N B H T S"] | None = None


@flax.struct.dataclass
class Shared:
    """The inputs of every layer of a stack, the same for all.

    Attributes:
        mask: of the stack's own positions among themselves.
        bias: added to the scores of self-attention, or None.
        positions: within each document, for schemes that act on queries and keys.
        memory, memory_mask: the encoder's output and its mask for cross-attention, or None where
            there is none or where the cache already has its keys and values.
        tokens: the token ids, or None, for layers that depend on them.
        extra: any tree of arrays that a system's own blocks or attention need in every layer, such
            as a table of relative position embeddings.
        first: there is a cache and it is empty, so positions attend only to each other.
        deterministic: no dropout and no other noise of training.
        collect: names in COLLECTABLE that each layer returns, as a `Collected`, in place of its
            cache.
    """

    mask: AttentionMask
    bias: Float[Array, "B H T S"] | RelativeBias | None = None
    positions: Int[Array, "B T"] | None = None
    memory: Float[Array, "B S D"] | None = None
    memory_mask: AttentionMask | None = None
    tokens: Int[Array, "B T"] | None = None
    extra: PyTree = None
    first: bool = flax.struct.field(pytree_node=False, default=False)
    deterministic: bool = flax.struct.field(pytree_node=False, default=True)
    collect: tuple[str, ...] = flax.struct.field(pytree_node=False, default=())

    @property
    def with_scores(self) -> bool:
        """Whether layers return their attention scores."""
        return "attention_scores" in self.collect

    def collected(
        self,
        carry: PyTree,
        attention_scores: Float[Array, "B H T S"] | None,
        cross_attention_scores: Float[Array, "B H T S"] | None = None,
    ) -> Collected:
        """The `Collected` of one layer whose output is `carry`: None for all that is not asked."""
        return Collected(
            hidden_states=carry if "hidden_states" in self.collect else None,
            attention_scores=attention_scores,
            cross_attention_scores=cross_attention_scores,
        )


def collect_layers(collect: tuple[str, ...], carry: PyTree, per_layer: PyTree) -> Collected:
    """Combine the `Collected` of all layers, in the order of the layers.

    Args:
        carry: the input of layer 0.
        per_layer: the outputs per layer of a stack, scanned, looped or in groups of layers.

    Raises:
        ValueError: a name that cannot be collected, or a block that does not return it.
    """
    for name in collect:
        choose("collect", name, dict.fromkeys(COLLECTABLE))

    def is_one(x: PyTree) -> bool:
        return isinstance(x, Collected)

    layers = [x for x in jax.tree.leaves(per_layer, is_leaf=is_one) if is_one(x)]
    for name in collect:
        if not layers or any(getattr(layer, name) is None for layer in layers):
            raise ValueError(
                f"collect has {name!r}, which the blocks of this network do not return: their "
                "output per layer must be shared.collected(...) where shared.collect is not empty"
            )

    def join(rank: int, *layers: Array) -> Array:
        # Scanned layers are stacked already; in scanned groups, each block is a stack of its own.
        stacks = [x.reshape(-1, *x.shape[x.ndim - rank :]) for x in layers]
        return jnp.stack(stacks, axis=1).reshape(-1, *stacks[0].shape[1:])

    def follow(first: Array, *layers: Array) -> Array:
        return jnp.concatenate([first[None], join(first.ndim, *layers)])

    states = None
    if "hidden_states" in collect:
        states = jax.tree.map(follow, carry, *(layer.hidden_states for layer in layers))

    def scores(*layers: Array) -> Array:
        return join(4, *layers)

    return Collected(
        hidden_states=states,
        attention_scores=jax.tree.map(scores, *(layer.attention_scores for layer in layers)),
        cross_attention_scores=jax.tree.map(
            scores, *(layer.cross_attention_scores for layer in layers)
        ),
    )


# ---- The layers.


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
