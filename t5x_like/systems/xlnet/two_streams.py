"""XLNet's attention and layer: relative positions, segments, two streams in any order."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import AttentionMask, align_distances
from t5x_like.nn.blocks import PostNormBlock, Shared, refuse_cross_attention
from t5x_like.nn.matrix_product import product


@flax.struct.dataclass(kw_only=True)
class OrderMask(AttentionMask):
    """An AttentionMask under which a query attends to the tokens before it in some order.

    Yang et al. 2019, section 2.3, equation 3: the query of the token at rank t attends to the keys
    of ranks up to t, or only below t if it must not see its own token. Several tokens may have the
    same rank. Keys that every query attends to, such as a memory, have the rank -1.

    Attributes:
        query_ranks, key_ranks: the rank of each token in the order; None for no order.
        visible: which keys each query may attend to, beside the ranks; None for all.
        own: whether a query attends to keys of its own rank, and always to its own key, even if
            that is padding; the T queries are then the tokens of the last T keys.
    """

    query_ranks: Int[Array, "B T"] | None = None
    key_ranks: Int[Array, "B S"] | None = None
    visible: Bool[Array, "B T S"] | None = None
    own: bool = flax.struct.field(pytree_node=False)

    def dense(self, *, queries: int, keys: int) -> Bool[Array, "B 1 T S"] | None:
        """Return the matrix for `queries` (T) and `keys` (S)."""
        allowed = super().dense(queries=queries, keys=keys)
        if self.query_ranks is not None and self.key_ranks is not None:
            query, key = self.query_ranks[:, None, :, None], self.key_ranks[:, None, None, :]
            before = key <= query if self.own else key < query
            allowed = before if allowed is None else allowed & before
        if self.visible is not None:
            visible = self.visible[:, None]
            allowed = visible if allowed is None else allowed & visible
        if self.own and allowed is not None:
            allowed |= jnp.eye(queries, keys, keys - queries, dtype=bool)
        return allowed


@flax.struct.dataclass
class Sides:
    """The positions and segments that the attention scores of a stream depend on.

    Attributes:
        memory: M, the number of keys before the keys of the row.
        slots: the slot of each query, counted like the slots of the keys; None: the queries are in
            the slots from M to the last.
        query_types, key_types: segments; None for scores without the segment term.
        backward: whether each row's text runs from its end to its beginning; None for no row.
    """

    memory: int = flax.struct.field(pytree_node=False, default=0)
    slots: Int[Array, "B T"] | None = None
    query_types: Int[Array, "B T"] | None = None
    key_types: Int[Array, "B S"] | None = None
    backward: Bool[Array, " B"] | None = None


class TwoSidedAttention(Attention):
    """Attention whose scores depend on content, relative position and segment.

    Yang et al. 2019, sections 2.2 and 2.5: let q_i be the query in slot i, k_j the key in slot j,
    and R_d the sines followed by the cosines of the distance d. Each layer learns W, u, v, w and
    two vectors s. The score before scaling is

        (q_i + u) k_j + (q_i + v) W R_{i-j} + (q_i + w) s,

    where s is one vector if i and j have the same segment, and the other vector if not. As in the
    released code, u, v and w are initialized like kernels, and have weight decay. Distances are
    negative for keys after the query; in a row whose text runs backward all distances change sign.
    `extra` of `attend` is a `Sides`.

    Attributes:
        features: D, the width of the sines and cosines; even.
        longest_distance: distances beyond it count as it, to both sides; None: no limit.
    """

    features: int = dataclasses.field(kw_only=True)
    longest_distance: int | None = None

    def setup(self) -> None:
        super().setup()
        if self.features % 2:
            raise ValueError(
                f"model.d_model={self.features} is odd: distances are vectors of as many sines as "
                "cosines, so it must be even"
            )

        def kernel(key: Array, shape: tuple[int, ...]) -> Array:
            return self.kernel_init(key, (shape[0], math.prod(shape[1:]))).reshape(shape)

        def weight(name: str, axis: str, *, rows: int) -> Array:
            init = nn.with_logical_partitioning(kernel, (axis, "heads", "kv"))
            return self.param(name, init, (rows, self.heads, self.width))

        def bias(name: str) -> Array:
            # The axes do not mark it as a bias, so that it is initialized and decayed as a kernel.
            init = nn.with_logical_partitioning(self.kernel_init, ("heads", "query"))
            return self.param(name, init, (self.heads, self.width))

        self.distance_kernel = weight("distance_kernel", "embed", rows=self.features)
        self.segments = weight("segments", "types", rows=2)
        self.content_bias = bias("content_bias")
        self.distance_bias = bias("distance_bias")
        self.segment_bias = bias("segment_bias")

    def prepare_scores(
        self,
        query: Float[Array, "B T H K"],
        keys_values: KeyValues,
        bias: Float[Array, "B H T S"] | None,
        *,
        mask: AttentionMask,
        extra: PyTree,
    ) -> tuple[Float[Array, "B T H K"], Float[Array, "B H T S"]]:
        """Return the query plus u, and the scaled scores of distances and segments plus `bias`."""
        del mask
        sides: Sides = extra
        scores = self._distance_scores(query, sides, keys=keys_values.length)
        if sides.query_types is not None and sides.key_types is not None:
            differ = sides.query_types[:, :, None] != sides.key_types[:, None, :]
            scores = scores + self._segment_scores(query, differ)
        content = query + self.content_bias.astype(query.dtype)
        return content, scores if bias is None else bias + scores

    def _distance_scores(
        self, query: Float[Array, "B T H K"], sides: Sides, *, keys: int
    ) -> Float[Array, "B H T S"]:
        # A row of L tokens after M of memory has M + 2 L - 1 distances, from the distance of the
        # last query from the first key down to the distance of the first query from the last key.
        distances = jnp.arange(keys - 1, sides.memory - keys, -1)
        if self.longest_distance is not None:
            distances = jnp.clip(distances, -self.longest_distance, self.longest_distance)
        query = (query + self.distance_bias.astype(query.dtype)) * self.scale_factor
        table = self._table(distances, sides.backward)
        equation = "BTHK,RHK->BHTR" if sides.backward is None else "BTHK,BRHK->BHTR"
        scores = product(equation, query, table)
        if sides.slots is None:
            return align_distances(scores, keys=keys)
        # Column r is the distance keys - 1 - r.
        columns = keys - 1 - (sides.slots[..., None] - jnp.arange(keys))
        return jnp.take_along_axis(scores, columns[:, None], axis=-1)

    def _table(
        self, distances: Int[Array, " R"], backward: Bool[Array, " B"] | None
    ) -> Float[Array, "R H K"] | Float[Array, "B R H K"]:
        """Return W R_d for each distance; with `backward`, separately for each row."""
        # In float32 for every model.dtype, like sinusoidal positions.
        exponents = jnp.arange(0, self.features, 2, dtype=jnp.float32) / self.features
        angles = distances[:, None].astype(jnp.float32) * 10_000.0**-exponents
        waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)]).astype(self.compute.dtype)
        kernel = self.distance_kernel.astype(self.compute.dtype)
        halves = kernel.reshape(2, self.features // 2, self.heads, self.width)
        sines, cosines = jnp.einsum("PRD,PDHK->PRHK", waves, halves)
        if backward is None:
            return sines + cosines
        # sin(-x) = -sin(x), cos(-x) = cos(x)
        sign = jnp.where(backward, -1, 1).astype(self.compute.dtype)
        return sign[:, None, None, None] * sines + cosines

    def _segment_scores(
        self, query: Float[Array, "B T H K"], differ: Bool[Array, "B T S"]
    ) -> Float[Array, "B H T S"]:
        query = (query + self.segment_bias.astype(query.dtype)) * self.scale_factor
        same, other = product("BTHK,NHK->NBHT", query, self.segments.astype(query.dtype))
        return jnp.where(differ[:, None], other[..., None], same[..., None])


# ---- A layer of two streams that share their weights, with a memory of the preceding text.


@flax.struct.dataclass
class Streams:
    """The masks and other inputs of the attention of all streams, for `Shared.extra`.

    Attributes:
        masks: {stream: the mask over the keys of the memory and then of the row}.
        extras: {stream: the `extra` of its attention}.
        blind: which queries of the stream "query" attend to nothing, or None. Their attention is
            set to 0: a softmax over nothing would average all values, including their own token's.
        reused: the number of tokens at the beginning of each row after which the next row
            continues; None for all tokens.
    """

    masks: Mapping[str, AttentionMask]
    extras: Mapping[str, PyTree]
    blind: Bool[Array, "B P"] | None = None
    reused: Int[Array, " B"] | None = None


class TwoStreamBlock(PostNormBlock):
    """norm(x + sublayer(x)) for two streams (Yang et al. 2019, section 2.3 and appendix A.2).

    The carry has the stream "content", [B, T, D], and optionally a stream "query", [B, P, D], for
    the P positions to predict, which do not see their own tokens. Both streams share the weights,
    and both attend to the keys and values of the memory and of the content.

    `Shared.extra` is a `Streams`. The block has no cross-attention.
    """

    def setup(self) -> None:
        refuse_cross_attention(self)
        super().setup()

    def __call__(  # type: ignore[override]
        self, carry: dict[str, Array], shared: Shared, memory: Float[Array, "B M D"] | None
    ) -> tuple[dict[str, Array], Any]:
        """Return {stream: the layer's output}, and the next memory if a memory was given.

        If `shared.collect` is not empty, a `Collected` is returned instead of the memory; its
        hidden states and scores are {stream: array}.
        """
        streams: Streams = shared.extra
        content = carry["content"]
        context = content if memory is None else jnp.concatenate([memory, content], axis=1)
        keys_values = self.self_attention.keys_values(context)
        after: dict[str, Array] = {}
        scores: Any = {}
        for name, x in carry.items():
            y, scores[name] = self.self_attention.attend(
                x,
                keys_values,
                mask=streams.masks[name],
                extra=streams.extras[name],
                deterministic=shared.deterministic,
                with_scores=shared.with_scores,
            )
            if name == "query" and streams.blind is not None:
                y = jnp.where(streams.blind[..., None], 0, y)
            x = self._sublayer_output(x, y, self.self_attention_norm, shared)
            y = self.feed_forward(x, deterministic=shared.deterministic)
            after[name] = self._sublayer_output(x, y, self.feed_forward_norm, shared)
        if shared.collect:
            return after, shared.collected(after, scores if shared.with_scores else None)
        if memory is None:
            return after, None
        new_memory = remembered(context, streams.reused, size=memory.shape[1])
        return after, jax.lax.stop_gradient(new_memory)


def remembered(
    context: Float[Array, "B S *D"], reused: Int[Array, " B"] | None, *, size: int
) -> Float[Array, "B M *D"]:
    """Return the memory for the next row: the last M states before the text that it begins with.

    Args:
        context: the M states of the memory, and then the states of the row.
        reused: the number of tokens at the beginning of each row after which the next row
            continues; None for all tokens.
        size: M.
    """
    if reused is None:
        return context[:, context.shape[1] - size :]
    indices = reused[:, None] + jnp.arange(size)
    indices = indices.reshape(*indices.shape, *[1] * (context.ndim - 2))
    return jnp.take_along_axis(context, indices, axis=1)
