"""The key-value cache of a decoder."""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from t5x_like.models.attention.masks import AttentionMask, Visibility

KEY_AXES = ("activation_batch", "activation_kv_heads", "activation_length", None)


@flax.struct.dataclass
class KeyValues:
    """Keys and values of one layer, also as this layer's cache.

    Heads come first, as the products read them: a cache that lies otherwise is copied at each token
    that is generated.
    """

    key: Float[Array, "B G S K"]
    value: Float[Array, "B G S K"]

    @classmethod
    def from_positions(
        cls, key: Float[Array, "B S G K"], value: Float[Array, "B S G K"]
    ) -> "KeyValues":
        """Keys and values that lie position by position."""
        return cls(key=jnp.swapaxes(key, 1, 2), value=jnp.swapaxes(value, 1, 2))

    def by_position(self) -> tuple[Float[Array, "B S G K"], Float[Array, "B S G K"]]:
        """The keys and the values, position by position."""
        return jnp.swapaxes(self.key, 1, 2), jnp.swapaxes(self.value, 1, 2)

    @property
    def length(self) -> int:
        """S."""
        return self.key.shape[2]

    def write(self, new: "KeyValues", *, slot: int | Int[Array, ""]) -> "KeyValues":
        """A copy with `new` (one or more slots) written from `slot` on."""

        def update(old: Array, fresh: Array) -> Array:
            old = jax.lax.dynamic_update_slice_in_dim(old, fresh.astype(old.dtype), slot, axis=2)
            return nn.with_logical_constraint(old, KEY_AXES)

        return jax.tree.map(update, self, new)

    def write_ring(self, new: "KeyValues", *, slot: int | Int[Array, ""]) -> "KeyValues":
        """A copy with `new` written to these W slots as a ring: slot s is at place s modulo W."""
        size, length = self.length, new.length
        kept = min(size, length)
        places = (slot + length - kept + jnp.arange(kept)) % size

        def update(old: Array, fresh: Array) -> Array:
            old = old.at[:, :, places].set(fresh[:, :, length - kept :].astype(old.dtype))
            return nn.with_logical_constraint(old, KEY_AXES)

        return jax.tree.map(update, self, new)

    def append(self, new: "KeyValues") -> "KeyValues":
        """These slots, then the new ones."""
        return jax.tree.map(lambda x, y: jnp.concatenate([x, y.astype(x.dtype)], 2), self, new)


@flax.struct.dataclass
class LayerCache:
    """One layer's cache: keys and values of the positions so far, and of the encoder's output.

    Of `memory` there is one row for all rows of `own` that continue one prompt, side by side.
    """

    own: KeyValues
    memory: KeyValues | None = None

    def repeat(self, times: int) -> "LayerCache":
        """Each row of `own` so many times."""
        own = jax.tree.map(lambda x: jnp.repeat(x, times, axis=x.ndim - 4), self.own)
        return dataclasses.replace(self, own=own)

    def reorder(self, rows: Int[Array, " B"]) -> "LayerCache":
        """The cache of other rows of the same prompts."""
        # Layers may be stacked before the rows.
        own = jax.tree.map(lambda x: jnp.take(x, rows, axis=x.ndim - 4), self.own)
        return dataclasses.replace(self, own=own)

    def from_slots(self, slots: Int[Array, "B S"]) -> "LayerCache":
        """The cache in which slot s of row b has what is in slot `slots[b, s]` now.

        Raises:
            ValueError: the layer has other slots, those of its window.
        """

        def take(x: Array) -> Array:
            if x.shape[-2] != slots.shape[1]:
                raise ValueError(
                    f"a layer with a window keeps {x.shape[-2]} of {slots.shape[1]} slots, and "
                    "its rows cannot be moved: use a model without a window"
                )
            places = slots.reshape((1,) * (x.ndim - 4) + (len(slots), 1, -1, 1))
            return jnp.take_along_axis(x, places, axis=x.ndim - 2)

        return LayerCache(own=jax.tree.map(take, self.own), memory=self.memory)


@flax.struct.dataclass
class Cache:
    """The key-value cache of all layers, in S slots that all rows fill together.

    Prompts are left-padded, so that they end in the same slot; positions are counted from the first
    token of each row.

    Attributes:
        layers: keys and values: [N, B, G, S, K] for a scanned stack; for a looped one a tuple of
            [B, G, S, K], which are updated in place.
        real: slots that hold a token and no padding.
        starts: the slot of each row's first token.
        length: the number of slots in use.
        memory_real: places of the encoder's output that are no padding, one row for all beams or
            samples of a prompt; or None without an encoder.
    """

    layers: PyTree
    real: Bool[Array, "B S"]
    starts: Int[Array, " B"]
    length: Int[Array, ""]
    memory_real: Bool[Array, "P M"] | None = None

    def repeat(self, times: int) -> "Cache":
        """Each row so many times, side by side: the samples or beams of its prompt."""
        return dataclasses.replace(
            self,
            layers=self._each_layer(lambda layer: layer.repeat(times)),
            real=jnp.repeat(self.real, times, axis=0),
            starts=jnp.repeat(self.starts, times),
        )

    def reorder(self, rows: Int[Array, " B"]) -> "Cache":
        """The cache whose row i is row `rows[i]` of this one, which is of the same prompt."""
        return dataclasses.replace(
            self,
            layers=self._each_layer(lambda layer: layer.reorder(rows)),
            real=self.real[rows],
            starts=self.starts[rows],
        )

    def moved(self, by: Int[Array, " B"]) -> "Cache":
        """Each row `by` slots further right: rows of several lengths then end in the same slot.

        Positions count from the first token of a row, so they stay, and so do distances.

        Raises:
            ValueError: a layer has a window.
        """
        slots = jnp.arange(self.real.shape[1])[None]
        old = slots - by[:, None]
        places = jnp.maximum(old, 0)
        real = jnp.take_along_axis(self.real, places, axis=1) & (old >= 0) & (slots < self.length)
        layers = self._each_layer(lambda layer: layer.from_slots(places))
        return dataclasses.replace(self, layers=layers, real=real, starts=self.starts + by)

    def _each_layer(self, change: Callable[[LayerCache], LayerCache]) -> PyTree:
        return jax.tree.map(change, self.layers, is_leaf=lambda x: isinstance(x, LayerCache))

    def push(
        self, real: Bool[Array, "B T"], *, visibility: Visibility, first: bool = False
    ) -> tuple["Cache", AttentionMask, Int[Array, "B T"]]:
        """Add T slots: the cache with them, their mask and their positions.

        Args:
            real: False where a slot holds padding.
            first: the cache is empty, and the mask covers only the new slots (`Shared.first`);
                otherwise it covers all slots.
        """
        slot = 0 if first else self.length
        slots = jax.lax.dynamic_update_slice_in_dim(self.real, real, slot, axis=1)
        cache = dataclasses.replace(self, real=slots, length=self.length + real.shape[1])
        mask = AttentionMask(
            key_segments=(real if first else slots).astype(jnp.int32),
            offset=None if first else slot,
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
    """An empty cache for prompts.

    Raises:
        ValueError: the prompt is longer than the cache.
    """
    if prompt.shape[1] > slots:
        raise ValueError(
            f"cache_length={slots} is shorter than the prompt of {prompt.shape[1]} tokens: make it "
            "as long as the prompt and the continuation together"
        )
    return Cache(
        layers=layers,
        real=jnp.zeros((prompt.shape[0], slots), bool),
        starts=jnp.argmax(prompt, axis=1).astype(jnp.int32),
        length=jnp.zeros((), jnp.int32),
        memory_real=memory_real,
    )
