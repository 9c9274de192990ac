"""What a decoder remembers between tokens."""

import dataclasses

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from t5x_like.models.attention.masks import AttentionMask, Visibility

KEY_AXES = ("activation_batch", "activation_length", "activation_kv_heads", None)


@flax.struct.dataclass
class KeyValues:
    """Keys and values of one layer, and so also one layer's cache."""

    key: Float[Array, "B S G K"]
    value: Float[Array, "B S G K"]

    def write(self, new: "KeyValues", *, slot: int | Int[Array, ""]) -> "KeyValues":
        """These, with `new` (one or more slots long) written from `slot` on."""

        def update(old: Array, fresh: Array) -> Array:
            old = jax.lax.dynamic_update_slice_in_dim(old, fresh.astype(old.dtype), slot, axis=1)
            return nn.with_logical_constraint(old, KEY_AXES)

        return jax.tree.map(update, self, new)

    def write_around(self, new: "KeyValues", *, slot: int | Int[Array, ""]) -> "KeyValues":
        """These W slots as a ring: slot s is kept at place s modulo W until slot s + W comes."""
        size, length = self.key.shape[1], new.key.shape[1]
        kept = min(size, length)
        places = (slot + length - kept + jnp.arange(kept)) % size

        def update(old: Array, fresh: Array) -> Array:
            old = old.at[:, places].set(fresh[:, length - kept :].astype(old.dtype))
            return nn.with_logical_constraint(old, KEY_AXES)

        return jax.tree.map(update, self, new)

    def followed_by(self, new: "KeyValues") -> "KeyValues":
        """These and then the new ones, as many slots as both have."""
        return jax.tree.map(lambda x, y: jnp.concatenate([x, y.astype(x.dtype)], 1), self, new)


@flax.struct.dataclass
class LayerCache:
    """One layer's keys and values: of the positions so far, and of the memory."""

    own: KeyValues
    memory: KeyValues | None = None

    def gather(self, rows: Int[Array, "R"], *, same_memory: bool) -> "LayerCache":
        """The cache of other rows.

        Args:
            same_memory: that of each new row is that of the row whose place it takes.
        """

        def take(x: Array) -> Array:
            return jnp.take(x, rows, axis=x.ndim - 4)  # layers may be stacked before the rows

        memory = self.memory if same_memory else jax.tree.map(take, self.memory)
        return LayerCache(own=jax.tree.map(take, self.own), memory=memory)


@flax.struct.dataclass
class Cache:
    """The keys and values of the tokens so far, in S slots that all rows fill together.

    Prompts end in the same slot: shorter ones begin later (left padding), and positions are
    counted from each row's own first token.

    Attributes:
        layers: keys and values, as a Stack makes them: [N, B, S, G, K] of a scanned one; of a
            looped one a tuple of [B, S, G, K], each of which is updated in place.
        real: slots that hold a token.
        starts: the slot of each row's first token.
        length: slots used.
        memory_real: places of the memory that hold a token, or None without a memory.
    """

    layers: PyTree
    real: Bool[Array, "B S"]
    starts: Int[Array, "B"]
    length: Int[Array, ""]
    memory_real: Bool[Array, "B M"] | None = None

    def gather(self, rows: Int[Array, "b"]) -> "Cache":
        """The cache of other rows, repeated for samples or beams."""
        return self._gather(rows, same_memory=False)

    def reorder(self, rows: Int[Array, "B"]) -> "Cache":
        """As `gather`, for rows of the same memory: those of a prompt's beams among themselves."""
        return self._gather(rows, same_memory=True)

    def _gather(self, rows: Array, *, same_memory: bool) -> "Cache":
        def take(layer: LayerCache) -> LayerCache:
            return layer.gather(rows, same_memory=same_memory)

        memory_real = self.memory_real
        if memory_real is not None and not same_memory:
            memory_real = memory_real[rows]
        return dataclasses.replace(
            self,
            layers=jax.tree.map(take, self.layers, is_leaf=lambda x: isinstance(x, LayerCache)),
            real=self.real[rows],
            starts=self.starts[rows],
            memory_real=memory_real,
        )

    def push(
        self, real: Bool[Array, "B T"], *, visibility: Visibility, first: bool = False
    ) -> tuple["Cache", AttentionMask, Int[Array, "B T"]]:
        """Counts T more slots in; their mask, and their positions.

        Args:
            first: the cache is empty, and the mask is to be that of the new slots alone
                (`Shared.first`); else it is over all slots.
        """
        slot = 0 if first else self.length
        slots = jax.lax.dynamic_update_slice_in_dim(self.real, real, slot, axis=1)
        cache = dataclasses.replace(self, real=slots, length=self.length + real.shape[1])
        mask = AttentionMask(
            key_segments=(real if first else slots).astype(jnp.int32),
            offset=slot,
            visibility=visibility,
        )
        positions = slot + jnp.arange(real.shape[1])[None] - self.starts[:, None]
        return cache, mask, jnp.maximum(positions, 0)


def open_cache(
    layers: PyTree,
    *,
    prompt: Bool[Array, "B P"],
    slots: int,
    memory_real: Bool[Array, "B M"] | None = None,
) -> Cache:
    """A cache with nothing in it yet, for rows whose prompts will be `prompt`.

    Raises:
        ValueError: where the prompt alone is longer than the cache.
    """
    if prompt.shape[1] > slots:
        raise ValueError(f"cache_length={slots} is shorter than the prompt, {prompt.shape[1]}")
    return Cache(
        layers=layers,
        real=jnp.zeros((prompt.shape[0], slots), bool),
        starts=jnp.argmax(prompt, axis=1).astype(jnp.int32),
        length=jnp.zeros((), jnp.int32),
        memory_real=memory_real,
    )
