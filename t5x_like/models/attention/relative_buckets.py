"""T5's relative positions: buckets of distances, with a learned bias for each bucket."""

import math
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def relative_position_bucket(
    relative_position: Any, *, bidirectional: bool, buckets: int, max_distance: int
) -> Any:
    """Return the bucket of key position minus query position (Raffel et al. 2020, section 2.1).

    Half of the buckets are for exact distances; the other half cover distances up to
    `max_distance` in logarithmic steps, and larger distances are in the last bucket. If
    bidirectional, keys before and after the query have separate halves of the buckets; otherwise
    all keys after the query are in bucket 0.

    Args:
        relative_position: an integer array of JAX or NumPy; the result is of the same kind.
    """
    xp = relative_position.__array_namespace__()  # NumPy for positions that are known statically
    bucket = xp.zeros_like(relative_position)
    if bidirectional:
        buckets //= 2
        bucket = xp.where(relative_position > 0, buckets, 0)
        distance = xp.abs(relative_position)
    else:
        distance = xp.maximum(-relative_position, 0)
    exact = buckets // 2
    # The clip keeps log(0) out of the branch that `where` does not take.
    ratio = xp.maximum(distance, exact).astype(xp.float32) / exact
    far = exact + (xp.log(ratio) / math.log(max_distance / exact) * (buckets - exact)).astype(
        xp.int32
    )
    return bucket + xp.where(distance < exact, distance, xp.minimum(far, buckets - 1))


@flax.struct.dataclass
class RelativeBias:
    """A relative position bias, represented by its table; `dense` builds the array [1, H, T, S].

    Attributes:
        table: the bias of each bucket and head.
        offset: the slot of the first query; the keys are in slots 0, 1, ...
        bidirectional, max_distance: see `relative_position_bucket`.
    """

    table: Float[Array, "b H"]
    offset: int | Int[Array, ""] = 0
    bidirectional: bool = flax.struct.field(pytree_node=False, default=True)
    max_distance: int = flax.struct.field(pytree_node=False, default=128)

    def buckets(self, relative_position: Any) -> Any:
        """Return the bucket of key position minus query position."""
        return relative_position_bucket(
            relative_position,
            bidirectional=self.bidirectional,
            buckets=self.table.shape[0],
            max_distance=self.max_distance,
        )

    def dense(self, *, queries: int, keys: int, dtype: Any) -> Float[Array, "1 H T S"]:
        """Return the bias of `queries` (T) slots on `keys` (S) slots."""
        slots = jnp.arange(queries)[:, None] + self.offset
        bucket = self.buckets(jnp.arange(keys)[None, :] - slots)
        # A product with the one-hot buckets, whose gradient is a product too; the gradient of a
        # gather is a scatter-add of T*S*H scalars, the slowest operation of a step on any device.
        one_hot = jax.nn.one_hot(bucket, self.table.shape[0], dtype=dtype)
        return jnp.einsum("TSb,bH->HTS", one_hot, self.table.astype(dtype))[None]
