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

    A query attends to a key if both have the same segment (0 is padding) and the visibility allows
    it: `full` allows every key, `causal` the keys whose slot is not after the query's slot, and
    `prefix` the same and every key of the prefix (Raffel et al. 2020, figure 3).

    Causality is defined by slots, not by positions: query t is in slot `offset + t`, key s in slot
    s. Within a segment slots and positions differ only by a shift, and in a cache all rows write to
    the same slot.

    Attributes:
        query_segments: None if the queries attend to all keys whose segment is not 0.
        key_segments: None if no key is padding.
        prefix: True at the keys of the prefix.
        offset: the slot of the first query; None for slot 0. The number 0 would become a traced
            value inside `jax.checkpoint`, but cores must know statically whether it is slot 0.
        key_slots: the slots of the keys, if not 0, 1, ...; a negative slot means no key.
        window: a query attends only to the last `window` slots up to its own; None: all.
        padding: `at_end` guarantees that in each row all padding (segment 0) follows the keys, so
            that a core may use a length instead of segments.
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
        """Return S, the number of keys, for self-attention with this number of queries."""
        return queries if self.key_segments is None else self.key_segments.shape[1]

    def at_slots(self, slots: Int[Array, " S"]) -> "AttentionMask":
        """Return the mask of the keys in these slots, in this order; a negative slot has no key."""

        def take(rows: Array | None) -> Array | None:
            return None if rows is None else rows[:, jnp.maximum(slots, 0)]

        return dataclasses.replace(
            self, key_segments=take(self.key_segments), prefix=take(self.prefix), key_slots=slots
        )

    def segments(
        self, *, batch: int, queries: int, keys: int
    ) -> tuple[Int[Array, "B T"], Int[Array, "B S"]]:
        """Return the segments of queries and keys; queries attend within segments other than 0."""
        if self.query_segments is not None and self.key_segments is not None:
            return self.query_segments, self.key_segments
        own, read = (jnp.ones((batch, length), jnp.int32) for length in (queries, keys))
        if self.key_segments is not None:  # queries attend to every key that is not padding
            read = (self.key_segments > 0).astype(jnp.int32)
        return own, read

    def dense(self, *, queries: int, keys: int) -> Bool[Array, "B 1 T S"] | None:
        """Return the matrix for `queries` (T) and `keys` (S), or None if all keys are visible."""
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
        """Return the part of the mask that depends on slots; B is 1 if all rows are equal."""
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

    Ranges may be traced, so that one compiled program serves left-to-right, right-to-left and
    bidirectional masks.

    Attributes:
        first, last: the slots of the first and the last key that each query attends to.
    """

    first: Int[Array, "B T"]
    last: Int[Array, "B T"]

    def dense(self, *, queries: int, keys: int) -> Bool[Array, "B 1 T S"]:
        """Return the matrix for `queries` (T) and `keys` (S)."""
        slots = jnp.arange(keys)
        within = (self.first[..., None] <= slots) & (slots <= self.last[..., None])
        within = within[:, None]
        allowed = super().dense(queries=queries, keys=keys)
        return within if allowed is None else allowed & within


@flax.struct.dataclass(kw_only=True)
class BranchMask(AttentionMask):
    """An AttentionMask over a sentence with branches inserted after some of its words.

    The visible matrix of Liu et al. 2019 (K-BERT), for self-attention: the words of the sentence
    (the trunk) attend to each other; a branch attends to itself and to the entity that it belongs
    to, and the entity attends to its branches.

    Attributes:
        branches: the number of each token's branch; 0 on the trunk.
        entities: the number of the entity that a trunk token is part of, or that a branch token
            belongs to; 0 for other tokens.
    """

    branches: Int[Array, "B T"]
    entities: Int[Array, "B T"]

    def dense(self, *, queries: int, keys: int) -> Bool[Array, "B 1 T S"]:
        """Return the matrix for `queries` (T) and `keys` (S), which are the same tokens."""
        query, key = self.branches[:, :, None], self.branches[:, None, :]
        same_entity = self.entities[:, :, None] == self.entities[:, None, :]
        one_is_trunk = (query == 0) | (key == 0)
        visible = ((query == key) | (one_is_trunk & same_entity))[:, None]
        allowed = super().dense(queries=queries, keys=keys)
        return visible if allowed is None else allowed & visible


@flax.struct.dataclass(kw_only=True)
class ComputedMask(AttentionMask):
    """A mask given as its matrix, for example for blocks of queries that were made rows.

    Attributes:
        allowed: True if a query attends to a key; axes may be 1.
    """

    allowed: Bool[Array, "B H T S"]

    def dense(self, *, queries: int, keys: int) -> Bool[Array, "B H T S"]:
        """Return the matrix."""
        del queries, keys
        return self.allowed
