"""Transformer layers: sublayers with norms and residuals, and the inputs that layers share.

In parallel layers (GPT-J, GPT-NeoX, PaLM) attention and feed-forward have the same input.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from t5x_like import partitioning
from t5x_like.names import choose
from t5x_like.nn.attention.cache import KeyValues, LayerCache
from t5x_like.nn.attention.positions import AttentionMask, RelativeBias
from t5x_like.nn.compute import Compute, make_dropout

COLLECTABLE = ("hidden_states", "attention_scores")


@flax.struct.dataclass
class Collected:
    """Hidden states and attention scores: of one layer from a block, of N layers from a tower.

    The shapes are for a tower; a block returns the arrays without the first axis.

    Attributes:
        hidden_states: the input of layer 0 and the carry after each layer: [N + 1, B, T, D], or a
            tree of such arrays if the carry is a tree. No final norm is applied.
        attention_scores: scores of self-attention before the softmax, float32, scaled, with the
            position bias; `attention.cores.MASKED` for masked keys.
        cross_attention_scores: the scores of cross-attention to the encoder's output.
    """

    hidden_states: PyTree = None
    attention_scores: Float[Array, "N B H T S"] | None = None
    cross_attention_scores: Float[Array, "N B H T S"] | None = None


@flax.struct.dataclass
class Shared:
    """The inputs that all layers of a stack share.

    Attributes:
        mask: the mask of self-attention.
        bias: added to the scores of self-attention, or None.
        positions: positions within each document, for rotary positions and the like.
        memory, memory_mask: the encoder's output and its mask for cross-attention. `memory` is None
            without an encoder, or if the cache already has its keys and values.
        tokens: the token ids, for layers that depend on them, or None.
        extra: any tree of arrays that the blocks or the attention of a system need in every layer,
            such as a table of relative position embeddings.
        first: whether there is a cache and it is empty, so that the new positions attend only to
            each other.
        deterministic: whether to run without dropout and other noise of training.
        collect: names in COLLECTABLE that each layer returns, as a `Collected`, instead of its
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
        """Return the `Collected` of a layer with output `carry`; None for what is not collected."""
        return Collected(
            hidden_states=carry if "hidden_states" in self.collect else None,
            attention_scores=attention_scores,
            cross_attention_scores=cross_attention_scores,
        )


def collect_layers(collect: tuple[str, ...], carry: PyTree, per_layer: PyTree) -> Collected:
    """Combine the `Collected` of all layers, in the order of the layers.

    Args:
        carry: the input of layer 0.
        per_layer: the per-layer outputs of a stack: scanned, unrolled or in groups of layers.

    Raises:
        ValueError: a name cannot be collected, or a block does not return it.
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
        # Scanned layers are already stacked; in scanned groups, each block is a separate stack.
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
    cross-attention. `make_x` is a factory of module x, here and in all modules.

    Attributes:
        compute: its `dropout` applies to the sublayers' outputs.
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
        """Return the layer's output, and the updated cache if a cache was given.

        If `shared.collect` is not empty, a `Collected` is returned instead of the cache.
        """
        x, updated, scores = self._self_attend(x, shared, cache)
        x, memory, cross_scores = self._cross_attend(x, shared, cache)
        x = self._feed_forward(x, shared)
        if shared.collect:
            return x, shared.collected(x, scores, cross_scores)
        return x, None if updated is None else LayerCache(own=updated, memory=memory)

    def empty_cache(self, *, batch: int, slots: int) -> LayerCache:
        """Make an empty cache for `slots` positions, without the encoder's keys and values."""
        return LayerCache(
            own=self.make_self_attention(parent=None).empty_cache(batch=batch, slots=slots)
        )

    def _self_attend(
        self, x: Array, shared: Shared, cache: LayerCache | None
    ) -> tuple[Array, KeyValues | None, Array | None]:
        y = self._sublayer_input(x, self.self_attention_norm)
        y, updated, scores = self_attend(self.self_attention, y, shared, cache)
        return self._sublayer_output(x, y, self.self_attention_norm, shared), updated, scores

    def _cross_attend(
        self, x: Array, shared: Shared, cache: LayerCache | None
    ) -> tuple[Array, KeyValues | None, Array | None]:
        if self.make_cross_attention is None:
            refuse_memory(self, shared)
            return x, None, None
        memory = encoder_keys_values(self.cross_attention, shared, cache)
        if memory is None:
            return x, None, None
        y = self._sublayer_input(x, self.cross_attention_norm)
        y, scores = cross_attend(self.cross_attention, y, memory, shared)
        return self._sublayer_output(x, y, self.cross_attention_norm, shared), memory, scores

    def _feed_forward(self, x: Array, shared: Shared) -> Array:
        """Apply the feed-forward sublayer and add it to the residual stream."""
        y = self._sublayer_input(x, self.feed_forward_norm)
        y = self.feed_forward(y, tokens=shared.tokens, deterministic=shared.deterministic)
        return self._sublayer_output(x, y, self.feed_forward_norm, shared)

    def _sublayer_input(self, x: Array, norm: nn.Module) -> Array:
        """Return the input of a sublayer, from the residual stream x."""
        return norm(x)

    def _sublayer_output(self, x: Array, y: Array, norm: nn.Module, shared: Shared) -> Array:
        """Return the residual stream after a sublayer with output y."""
        del norm  # pre-norm: already applied to the input
        return constrain_residual(x + self.drop(y, shared.deterministic))


class PostNormBlock(PreNormBlock):
    """norm(x + sublayer(x)): Vaswani et al. 2017, section 3.1."""

    def _sublayer_input(self, x: Array, norm: nn.Module) -> Array:
        return x

    def _sublayer_output(self, x: Array, y: Array, norm: nn.Module, shared: Shared) -> Array:
        return constrain_residual(norm(x + self.drop(y, shared.deterministic)))


def refuse_cross_attention(block: PreNormBlock) -> None:
    """Reject a factory that a block without cross-attention would ignore.

    Raises:
        ValueError: `make_cross_attention` is not None.
    """
    if block.make_cross_attention is not None:
        raise ValueError(
            f"a {type(block).__name__} has no cross-attention: leave make_cross_attention out, or "
            "take a PreNormBlock or a PostNormBlock"
        )


def refuse_memory(block: nn.Module, shared: Shared) -> None:
    """Reject an encoder's output that a block without cross-attention would ignore.

    Raises:
        ValueError: `shared.memory` is not None.
    """
    if shared.memory is not None:
        raise ValueError(
            f"a {type(block).__name__} without cross-attention would ignore the encoder's output: "
            "set make_cross_attention of a PreNormBlock or a PostNormBlock, or call cross_attend "
            "in a block of your own"
        )


def encoder_keys_values(
    attention: Any, shared: Shared, cache: LayerCache | None
) -> KeyValues | None:
    """Return the keys and values of the encoder's output, from the cache if it has them.

    None if there is no encoder.
    """
    if shared.memory is not None:
        return attention.keys_values(shared.memory)
    return None if cache is None else cache.memory


def cross_attend(
    attention: Any, x: Float[Array, "R T D"], memory: KeyValues, shared: Shared
) -> tuple[Float[Array, "R T D"], Float[Array, "B H T S"] | None]:
    """Run cross-attention to the encoder's keys and values; return its output and the scores.

    In beam search x has R rows for the B prompts of `memory`: the beams of a prompt become queries
    of one row, which read its keys and values once.
    """
    y, scores = attention.attend(
        x.reshape(memory.key.shape[0], -1, x.shape[-1]),
        memory,
        mask=shared.memory_mask,
        deterministic=shared.deterministic,
        with_scores=shared.with_scores,
    )
    return y.reshape(x.shape), scores


def self_attend(
    attention: Any,
    x: Float[Array, "B T D"],
    shared: Shared,
    cache: LayerCache | None,
    *,
    context: Float[Array, "B T D"] | None = None,
) -> tuple[Float[Array, "B T D"], KeyValues | None, Float[Array, "B H T S"] | None]:
    """Run self-attention; return its output, the updated cache or None, and the scores or None.

    Args:
        context: the source of the keys and values; None for x.

    Raises:
        ValueError: both a cache and `shared.collect` are given: a layer can return only one.
    """
    if shared.collect and cache is not None:
        raise ValueError(
            f"collect={shared.collect!r} needs a forward pass of whole texts, without a key-value "
            "cache"
        )
    seen, mask, updated = attention.update_cache(
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
    return y, updated, scores


def constrain_residual(x: Float[Array, "B T D"]) -> Any:
    """Constrain x to the sharding of the residual stream."""
    axes = ("activation_batch", "residual_length", "activation_embed")
    return partitioning.constrain(x, axes)


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
        refuse_memory(self, shared)
        y = self.norm(x)
        read, updated, scores = self_attend(self.self_attention, y, shared, cache)
        y = read + self.feed_forward(y, tokens=shared.tokens, deterministic=shared.deterministic)
        x = constrain_residual(x + self.drop(y, shared.deterministic))
        if shared.collect:
            return x, shared.collected(x, scores)
        return x, None if updated is None else LayerCache(own=updated)

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
        refuse_memory(self, shared)
        y, updated, scores = self_attend(
            self.self_attention, self.self_attention_norm(x), shared, cache
        )
        x = constrain_residual(self._feed_forward(x, shared) + self.drop(y, shared.deterministic))
        if shared.collect:
            return x, shared.collected(x, scores)
        return x, None if updated is None else LayerCache(own=updated)
