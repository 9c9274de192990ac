"""Who may attend to whom, described without building the matrix."""

from typing import Literal

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

Visibility = Literal["full", "causal", "prefix"]


@flax.struct.dataclass
class AttentionMask:
    """The visibility of keys to queries; a dense matrix only where a core asks for one.

    A query sees a key when both belong to the same segment, segment 0 being padding, and the
    visibility allows it: `full` always, `causal` when the key's slot is not after the query's,
    `prefix` as causal, and besides every key of the prefix (Raffel et al. 2020, figure 3).

    Slots, not positions, order causality: query t sits in slot `offset + t`, key s in slot s.
    They are the same within a segment up to a shift, and a cache has one slot for all rows.
    """

    query_segments: Int[Array, "B T"] | None = None
    key_segments: Int[Array, "B S"] | None = None
    prefix: Bool[Array, "B S"] | None = None
    offset: int | Int[Array, ""] = 0
    visibility: Visibility = flax.struct.field(pytree_node=False, default="full")

    def dense(self, *, queries: int, keys: int) -> Bool[Array, "B 1 T S"] | None:
        """The matrix for `queries` (T) and `keys` (S), or None when everything is visible."""
        allowed = None
        if self.query_segments is not None and self.key_segments is not None:
            query, key = self.query_segments[:, :, None], self.key_segments[:, None, :]
            allowed = (query == key) & (key > 0)
        elif self.key_segments is not None:
            allowed = (self.key_segments > 0)[:, None, :]
        if self.visibility != "full":
            before = jnp.arange(keys)[None, :] <= self.offset + jnp.arange(queries)[:, None]
            before = before[None]
            if self.prefix is not None:
                before = before | self.prefix[:, None, :]
            allowed = before if allowed is None else allowed & before
        return None if allowed is None else allowed[:, None]


@flax.struct.dataclass(kw_only=True)
class RangeMask(AttentionMask):
    """An AttentionMask under which a query sees, besides, only the keys of one range of slots.

    Ranges may be traced: one compiled program then reads forwards, backwards or both ways.

    Attributes:
        first, last: the slots of the first and of the last key that each query may see.
    """

    first: Int[Array, "B T"]
    last: Int[Array, "B T"]

    def dense(self, *, queries: int, keys: int) -> Bool[Array, "B 1 T S"]:
        """The matrix for `queries` (T) and `keys` (S)."""
        slots = jnp.arange(keys)
        within = (self.first[..., None] <= slots) & (slots <= self.last[..., None])
        within = within[:, None]
        allowed = super().dense(queries=queries, keys=keys)
        return within if allowed is None else allowed & within
