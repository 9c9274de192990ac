"""T5's relative positions: a learned bias on the attention scores, by distance."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from t5x_like.models.attention.cache import KeyValues
from t5x_like.models.attention.masks import AttentionMask
from t5x_like.models.attention.multi_head import Attention


def relative_position_bucket(
    relative_position: Int[Array, "..."], *, bidirectional: bool, buckets: int, max_distance: int
) -> Int[Array, "..."]:
    """The bucket of key position minus query position (Raffel et al. 2020, section 2.1).

    Half of the buckets are for exact distances; the other half cover distances up to
    `max_distance` in logarithmic steps, and everything beyond falls in the last. Bidirectional,
    the buckets are divided between keys before and after the query; otherwise keys after the
    query all fall in bucket 0.
    """
    bucket = jnp.zeros_like(relative_position)
    if bidirectional:
        buckets //= 2
        bucket = jnp.where(relative_position > 0, buckets, 0)
        distance = jnp.abs(relative_position)
    else:
        distance = jnp.maximum(-relative_position, 0)
    exact = buckets // 2
    # The clip keeps log(0) out of the branch that `where` does not take.
    ratio = jnp.maximum(distance, exact).astype(jnp.float32) / exact
    far = exact + (jnp.log(ratio) / math.log(max_distance / exact) * (buckets - exact)).astype(
        jnp.int32
    )
    return bucket + jnp.where(distance < exact, distance, jnp.minimum(far, buckets - 1))


class RelativePositionBias(nn.Module):
    """A learned scalar per head and distance bucket, added to the attention scores.

    Raffel et al. 2020, section 2.1: 32 buckets to 128, and one table for all layers of a stack.
    """

    heads: int
    buckets: int = 32
    max_distance: int = 128
    embedding_init: Any = nn.initializers.normal(1.0)
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, *, queries: int, keys: int, offset: int | Array, bidirectional: bool
    ) -> Float[Array, "1 H T S"]:
        """The bias of `keys` (S) slots for `queries` (T) slots that begin at `offset`.

        Raises:
            ValueError: no buckets are left for more than one distance.
        """
        if self.buckets < 4 or self.max_distance <= self.buckets // 2:
            raise ValueError(
                f"model.relative_buckets={self.buckets} must be 4 or more, and "
                f"model.relative_max_distance={self.max_distance} above half of it"
            )
        table = self.param(
            "embedding",
            nn.with_logical_partitioning(self.embedding_init, ("buckets", "heads")),
            (self.buckets, self.heads),
        )
        slots = jnp.arange(queries)[:, None] + offset
        bucket = relative_position_bucket(
            jnp.arange(keys)[None, :] - slots,
            bidirectional=bidirectional,
            buckets=self.buckets,
            max_distance=self.max_distance,
        )
        # A product with the one-hot buckets: its gradient is a product too, where a gather's is
        # a scatter-add of T*S*H scalars, the slowest operation of a step on every device.
        one_hot = jax.nn.one_hot(bucket, self.buckets, dtype=self.dtype)
        return jnp.einsum("TSb,bH->HTS", one_hot, table.astype(self.dtype))[None]


class BiasedAttention(Attention):
    """Self-attention with a relative position bias of its own, as in T5X's scalable_t5.

    Attributes:
        make_bias: factory of a `RelativePositionBias`.
    """

    make_bias: Callable[..., nn.Module] = dataclasses.field(kw_only=True)

    def setup(self) -> None:
        super().setup()
        self.relative_position_bias = self.make_bias()

    def prepare_scores(
        self,
        query: Float[Array, "B T H K"],
        keys_values: KeyValues,
        bias: Float[Array, "B H T S"] | None,
        *,
        mask: AttentionMask,
        extra: PyTree,
    ) -> tuple[Float[Array, "B T H K"], Float[Array, "B H T S"]]:
        """The query, and its bias plus `bias`."""
        own = self.relative_position_bias(
            queries=query.shape[1],
            keys=keys_values.key.shape[1],
            offset=mask.offset,
            bidirectional=mask.visibility != "causal",
        )
        return query, own if bias is None else bias + own
