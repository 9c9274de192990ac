"""Masks and positions in attention: which keys a query attends to, and at which distance.

Masks are described without building the [T, S] matrix. Positions are T5's buckets of distances,
relative shift, and rotary embeddings.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from t5x_like.names import choose, hint

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
        query_segments, key_segments = (
            jnp.ones((batch, length), jnp.int32) for length in (queries, keys)
        )
        if self.key_segments is not None:  # queries attend to every key that is not padding
            key_segments = (self.key_segments > 0).astype(jnp.int32)
        return query_segments, key_segments

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


def align_distances(scores: Float[Array, "B H T R"], *, keys: int) -> Float[Array, "B H T S"]:
    """Shift row t by T - 1 - t columns to the left (Dai et al. 2019, appendix B).

    A query in slot t has the distance t - s from the key in slot s. The R columns of `scores` are
    the distances T - 1, T - 2, ...; column s of row t of the result is the score of the distance
    t - s. R = T + S - 1 columns suffice for all keys. R = S suffices under a causal mask; the
    columns of keys after the query then contain scores of another row.

    Args:
        keys: S.
    """
    batch, heads, targets, distances = scores.shape
    # Pad a column on the left, flatten, skip T numbers and cut rows of R again: this shifts each
    # row by one column less than the row before.
    scores = jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (1, 0)))
    scores = scores.reshape(batch, heads, targets * (distances + 1))[..., targets:]
    return scores.reshape(batch, heads, targets, distances)[..., :keys]


Frequencies = Float[np.ndarray, "K/2"]  # radians per position


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """Position interpolation: positions are divided by `factor`, for a `factor` longer context.

    Chen et al. 2023, "Extending Context Window of Large Language Models via Positional
    Interpolation", equation 4.
    """

    factor: float

    def __call__(self, frequencies: Frequencies) -> Frequencies:
        """Return the scaled frequencies."""
        return frequencies / self.factor


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """LLaMA 3.1's scaling: low frequencies are divided by `factor`, high frequencies are kept.

    Let c be the number of rotations within `original_max_position_embeddings`. A frequency is kept
    if c >= `high_freq_factor`, divided if c <= `low_freq_factor`, and interpolated in between.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"model.rope_scaling.low_freq_factor={self.low_freq_factor} must be below "
                f"high_freq_factor={self.high_freq_factor}"
            )

    def __call__(self, frequencies: Frequencies) -> Frequencies:
        """Return the scaled frequencies."""
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        slope = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        share = np.clip(slope, 0.0, 1.0)
        return share * frequencies + (1.0 - share) * frequencies / self.factor


Scaling = Callable[[Frequencies], Frequencies]
SCALINGS: dict[str, Callable[..., Scaling]] = {"linear": LinearScaling, "llama3": Llama3Scaling}


def select_scaling(settings: Mapping[str, Any]) -> Scaling | None:
    """Make the scaling of `model.rope_scaling`, in Hugging Face's format; None if it is empty.

    Args:
        settings: `rope_type`, a name in SCALINGS, and the fields of its class.

    Raises:
        ValueError: `rope_type` is unknown, or a setting is missing, unknown or out of range.
    """
    if not settings:
        return None
    values = dict(settings)
    make = choose("model.rope_scaling.rope_type", values.pop("rope_type", None), SCALINGS)
    names = list(inspect.signature(make).parameters)
    for name in values:
        if name not in names:
            raise ValueError(f"model.rope_scaling has no {name!r}.{hint(name, names)}")
    for name in names:
        if name not in values:
            raise ValueError(
                f"model.rope_scaling lacks {name}, which rope_type={settings['rope_type']!r} needs"
            )
        if not values[name] > 0:
            raise ValueError(f"model.rope_scaling.{name}={values[name]!r} must be above 0")
    return make(**values)


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Rotary positions: Su et al. 2021, "RoFormer", equations 14 to 16 and 34.

    Pair i of a head at position m is rotated by m * theta^(-2i / K). The product of a rotated query
    and a rotated key depends only on the difference of their positions. Pairs are (i, i + K/2) as
    in GPT-NeoX and Hugging Face, not (2i, 2i + 1) as in the paper: the order within a head does not
    matter.

    Attributes:
        theta: base of the frequencies; the slowest pair rotates once in about 2 pi theta positions.
        scaling: a function of the frequencies, see `select_scaling`, or None.
        width: only the first `width` features of each head are rotated (then K above is `width`),
            and the others have no position (Black et al. 2022, section 2.1.1); None for all.
    """

    theta: float = 10_000.0
    scaling: Scaling | None = None
    width: int | None = None

    def __call__(
        self, x: Float[Array, "B L H K"], positions: Int[Array, "B L"] | None
    ) -> Float[Array, "B L H K"]:
        """Return the rotated heads, in the dtype of `x`; positions None means 0 to L - 1.

        Raises:
            ValueError: the width is odd.
        """
        width = x.shape[-1] if self.width is None else self.width
        if width % 2:
            raise ValueError(
                f"rotary positions rotate pairs: the heads' width must be even, not {width}"
            )
        if positions is None:
            positions = jnp.arange(x.shape[1])[None]
        # Always in float32: bfloat16 has 8 bits of precision, so no odd positions above 256.
        frequencies = self.frequencies(width=width).astype(np.float32)
        angles = positions.astype(jnp.float32)[:, :, None, None] * frequencies
        cosine, sine = jnp.cos(angles), jnp.sin(angles)
        first, second = self._pairs(x[..., :width].astype(jnp.float32))
        turned = self._joined(first * cosine - second * sine, second * cosine + first * sine)
        return jnp.concatenate([turned.astype(x.dtype), x[..., width:]], axis=-1)

    def _pairs(self, x: Array) -> tuple[Array, Array]:
        """Return the first and the second element of each pair."""
        first, second = jnp.split(x, 2, axis=-1)
        return first, second

    def _joined(self, first: Array, second: Array) -> Array:
        return jnp.concatenate([first, second], axis=-1)

    def frequencies(self, *, width: int) -> Frequencies:
        """Return the radians per position of each pair of a head of `width`, highest first."""
        frequencies = self.theta ** -(np.arange(0, width, 2) / width)
        return frequencies if self.scaling is None else self.scaling(frequencies)


class InterleavedRotary(Rotary):
    """Rotary positions with adjacent pairs, (2i, 2i + 1), as in RoFormer and GPT-J."""

    def _pairs(self, x: Array) -> tuple[Array, Array]:
        return x[..., ::2], x[..., 1::2]

    def _joined(self, first: Array, second: Array) -> Array:
        return jnp.stack([first, second], axis=-1).reshape(*first.shape[:-1], -1)
