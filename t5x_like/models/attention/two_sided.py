"""Attention to both sides by relative position and segment, with orders of prediction: XLNet's."""

import dataclasses
import math

import flax.linen as nn
import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from t5x_like.models.attention.cache import KeyValues
from t5x_like.models.attention.masks import AttentionMask
from t5x_like.models.attention.multi_head import Attention
from t5x_like.models.attention.relative_shift import align_distances
from t5x_like.models.matrix_product import product


@flax.struct.dataclass(kw_only=True)
class OrderMask(AttentionMask):
    """An AttentionMask under which a query attends to what comes before it in an order.

    Yang et al. 2019, section 2.3, equation 3: the query of the token at rank t attends to the keys
    of ranks up to t, or below t where it must not see its own token. Keys of one rank come
    together. What every query attends to, such as a memory, has the rank -1.

    Attributes:
        query_ranks, key_ranks: the place of each token in the order; None: all come together.
        own: a query attends to keys of its own rank, and to its own key even if that is padding;
            the queries are then those of the last keys.
    """

    query_ranks: Int[Array, "B T"] | None = None
    key_ranks: Int[Array, "B S"] | None = None
    own: bool = flax.struct.field(pytree_node=False)

    def dense(self, *, queries: int, keys: int) -> Bool[Array, "B 1 T S"] | None:
        """The matrix for `queries` (T) and `keys` (S)."""
        allowed = super().dense(queries=queries, keys=keys)
        if self.query_ranks is not None and self.key_ranks is not None:
            query, key = self.query_ranks[:, None, :, None], self.key_ranks[:, None, None, :]
            before = key <= query if self.own else key < query
            allowed = before if allowed is None else allowed & before
        if self.own and allowed is not None:
            allowed |= jnp.eye(queries, keys, keys - queries, dtype=bool)
        return allowed


@flax.struct.dataclass
class Sides:
    """What the scores of a stream of queries depend on besides its content, for `Shared.extra`.

    Attributes:
        memory: M, the number of keys before those of the row.
        slots: the slot of each query, counted as those of the keys; None: the queries are in
            slots M, M + 1, ... to the last.
        query_types, key_types: segments; None: no term of segments.
        backward: rows whose text runs from its end to its beginning, or None.
    """

    memory: int = flax.struct.field(pytree_node=False, default=0)
    slots: Int[Array, "B T"] | None = None
    query_types: Int[Array, "B T"] | None = None
    key_types: Int[Array, "B S"] | None = None
    backward: Bool[Array, " B"] | None = None


class TwoSidedAttention(Attention):
    """Attention whose scores depend on content, relative position and segment.

    Yang et al. 2019, sections 2.2 and 2.5: with q_i the query in slot i, k_j the key in slot j, R_d
    the sines and then the cosines of the distance d, W, u, v, w and the two vectors s learned by
    each layer, the score before scaling is

        (q_i + u) k_j + (q_i + v) W R_{i-j} + (q_i + w) s,

    s one vector where i and j have the same segment and the other where not. As in the released
    code u, v and w are initialized as kernels are, and decay. Distances are negative for keys after
    the query, without a longest one; where a row's text runs backward, all change their sign.
    `Shared.extra` is a `Sides`.

    Attributes:
        features: D, the width of the sines and cosines; even.
    """

    features: int = dataclasses.field(kw_only=True)

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
            # Initialized and decayed as matrices are: by its axes it does not count as a bias.
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
        """The query plus u, and the scaled scores of distances and segments plus `bias`."""
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
        # Of a row of L tokens after M of memory: from that of its last token to the first key, to
        # that of its first token to the last key, M + 2 L - 1 in all.
        distances = jnp.arange(keys - 1, sides.memory - keys, -1)
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
        """W R_d of each distance, for each row where some run backward."""
        # In float32 for every model.dtype, as sinusoidal positions are.
        exponents = jnp.arange(0, self.features, 2, dtype=jnp.float32) / self.features
        angles = distances[:, None].astype(jnp.float32) * 10_000.0**-exponents
        waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)]).astype(self.dtype)
        kernel = self.distance_kernel.astype(self.dtype)
        halves = kernel.reshape(2, self.features // 2, self.heads, self.width)
        sines, cosines = jnp.einsum("PRD,PDHK->PRHK", waves, halves)
        if backward is None:
            return sines + cosines
        # sin(-x) = -sin(x), cos(-x) = cos(x)
        sign = jnp.where(backward, -1, 1).astype(self.dtype)
        return sign[:, None, None, None] * sines + cosines

    def _segment_scores(
        self, query: Float[Array, "B T H K"], differ: Bool[Array, "B T S"]
    ) -> Float[Array, "B H T S"]:
        query = (query + self.segment_bias.astype(query.dtype)) * self.scale_factor
        same, other = product("BTHK,NHK->NBHT", query, self.segments.astype(query.dtype))
        return jnp.where(differ[:, None], other[..., None], same[..., None])
