"""Attention masks, described without building the [T, S] matrix."""

import dataclasses
from typing import Literal

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

Visibility = Literal["full", "causal", "prefix"]
Padding = Literal["anywhere", "at_end"]


@flax.struct.dataclass
class AttentionMask:
    """The keys that each query attends to; `dense` builds the matrix for cores that need it.

    A query attends to a key when both have the same segment (0 is padding) and the visibility
    allows it: `full` always, `causal` when the key's slot is not after the query's, `prefix` as
    causal, and also to every key of the prefix (Raffel et al. 2020, figure 3).

    Slots, not positions, order causality: query t sits in slot `offset + t`, key s in slot s.
    They are the same within a segment up to a shift, and a cache has one slot for all rows.

    Attributes:
        offset: the slot of the first query; None for slot 0. A number would be an unknown of the
            program inside `jax.checkpoint`, and cores choose by slot 0.
        key_slots: the slots of the keys where these are not 0, 1, ...; below 0 there is no key.
        window: a query attends only to the keys of this many slots, its own the last; None: all.
        padding: `at_end` promises that no key of a row is after its first one with segment 0, so
            that a core may read a length for it.
    """

    query_segments: Int[Array, "B T"] | None = None
    key_segments: Int[Array, "B S"] | None = None
    prefix: Bool[Array, "B S"] | None = None
    offset: int | Int[Array, ""] | None = None
    key_slots: Int[Array, " S"] | None = None
    window: int | None = flax.struct.field(pytree_node=False, default=None)
    visibility: Visibility = flax.struct.field(pytree_node=False, default="full")
    padding: Padding = flax.struct.field(pytree_node=False, default="anywhere")

    @property
    def first_slot(self) -> int | Int[Array, ""]:
        """The slot of the first query."""
        return 0 if self.offset is None else self.offset

    def keys(self, queries: int) -> int:
        """S, for self-attention with that many queries."""
        return queries if self.key_segments is None else self.key_segments.shape[1]

    def at_slots(self, slots: Int[Array, " S"]) -> "AttentionMask":
        """The mask of the keys in these slots, in this order; below 0 there is no key."""

        def take(rows: Array | None) -> Array | None:
            return None if rows is None else rows[:, jnp.maximum(slots, 0)]

        return dataclasses.replace(
            self, key_segments=take(self.key_segments), prefix=take(self.prefix), key_slots=slots
        )

    def segments(
        self, *, batch: int, queries: int, keys: int
    ) -> tuple[Int[Array, "B T"], Int[Array, "B S"]]:
        """Segments of queries and keys: a query attends to keys of its own, and to none of 0."""
        if self.query_segments is not None and self.key_segments is not None:
            return self.query_segments, self.key_segments
        own, read = (jnp.ones((batch, length), jnp.int32) for length in (queries, keys))
        if self.key_segments is not None:  # queries attend to every key that is not padding
            read = (self.key_segments > 0).astype(jnp.int32)
        return own, read

    def dense(self, *, queries: int, keys: int) -> Bool[Array, "B 1 T S"] | None:
        """The matrix for `queries` (T) and `keys` (S), or None when everything is visible."""
        allowed = None
        if self.query_segments is not None and self.key_segments is not None:
            query, key = self.query_segments[:, :, None], self.key_segments[:, None, :]
            allowed = (query == key) & (key > 0)
        elif self.key_segments is not None:
            allowed = (self.key_segments > 0)[:, None, :]
        slots = self._between_slots(queries=queries, keys=keys)
        if slots is not None:
            allowed = slots if allowed is None else allowed & slots
        return None if allowed is None else allowed[:, None]

    def _between_slots(self, *, queries: int, keys: int) -> Bool[Array, "B T S"] | None:
        """The part of the mask that depends on slots; B is 1 if it is the same for all rows."""
        if self.visibility == "full" and self.window is None and self.key_slots is None:
            return None
        key = (jnp.arange(keys) if self.key_slots is None else self.key_slots)[None, None, :]
        query = (self.first_slot + jnp.arange(queries))[None, :, None]
        allowed = jnp.broadcast_to(key >= 0, (1, queries, keys))
        if self.visibility != "full":
            before = key <= query
            allowed &= before if self.prefix is None else before | self.prefix[:, None, :]
        if self.window is not None:
            allowed &= query - key < self.window
        return allowed


@flax.struct.dataclass(kw_only=True)
class RangeMask(AttentionMask):
    """An AttentionMask under which a query attends only to the keys of one range of slots.

    Ranges may be traced: one compiled program then serves left-to-right, right-to-left and
    bidirectional masks.

    Attributes:
        first, last: the slots of the first and the last key that each query attends to.
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


@flax.struct.dataclass(kw_only=True)
class BranchMask(AttentionMask):
    """An AttentionMask over a sentence with branches behind some of its words.

    The visible matrix of Liu et al. 2019 (K-BERT), for self-attention: the words of the sentence,
    its trunk, attend to each other; a branch attends to itself and to the entity that it belongs
    to, and this entity to the branch.

    Attributes:
        branches: the number of each token's branch, 0 on the trunk.
        entities: the number of the entity that a token of the trunk is part of, or that a token of
            a branch belongs to; 0 elsewhere.
    """

    branches: Int[Array, "B T"]
    entities: Int[Array, "B T"]

    def dense(self, *, queries: int, keys: int) -> Bool[Array, "B 1 T S"]:
        """The matrix for `queries` (T) and `keys` (S), which are the same tokens."""
        query, key = self.branches[:, :, None], self.branches[:, None, :]
        same_entity = self.entities[:, :, None] == self.entities[:, None, :]
        one_is_trunk = (query == 0) | (key == 0)
        visible = ((query == key) | (one_is_trunk & same_entity))[:, None]
        allowed = super().dense(queries=queries, keys=keys)
        return visible if allowed is None else allowed & visible


@flax.struct.dataclass(kw_only=True)
class ComputedMask(AttentionMask):
    """A mask that is computed already, such as that of blocks of queries, which are rows here.

    Attributes:
        allowed: True where a query attends to a key; an axis may be 1.
    """

    allowed: Bool[Array, "B H T S"]

    def dense(self, *, queries: int, keys: int) -> Bool[Array, "B H T S"]:
        """The matrix itself."""
        del queries, keys
        return self.allowed
