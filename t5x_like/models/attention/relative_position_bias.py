"""T5's relative positions: a learned bias on the attention scores, by distance."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from t5x_like.models.attention.cache import KeyValues
from t5x_like.models.attention.masks import AttentionMask
from t5x_like.models.attention.multi_head import Attention
from t5x_like.models.attention.relative_buckets import RelativeBias


class RelativePositionBias(nn.Module):
    """A learned scalar per head and distance bucket, added to the attention scores.

    Raffel et al. 2020, section 2.1: 32 buckets to 128, and one table for all layers of a stack.

    Attributes:
        in_core: the attention core computes the bias from the table (`Core.knows_relative_bias`).
    """

    heads: int
    buckets: int = 32
    max_distance: int = 128
    embedding_init: Any = nn.initializers.normal(1.0)
    in_core: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, *, queries: int, keys: int, offset: int | Array, bidirectional: bool
    ) -> Float[Array, "1 H T S"] | RelativeBias:
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
        bias = RelativeBias(
            table=table,
            offset=offset,
            bidirectional=bidirectional,
            max_distance=self.max_distance,
        )
        if self.in_core:
            return bias
        return bias.dense(queries=queries, keys=keys, dtype=self.dtype)


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
    ) -> tuple[Float[Array, "B T H K"], Any]:
        """The query, and its bias plus `bias`."""
        own = self.relative_position_bias(
            queries=query.shape[1],
            keys=keys_values.length,
            offset=mask.first_slot,
            bidirectional=mask.visibility != "causal",
        )
        return query, own if bias is None else bias + own
