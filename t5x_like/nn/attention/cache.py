"""The key-value cache of a decoder."""

import dataclasses
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from t5x_like import partitioning
from t5x_like.nn.attention.positions import AttentionMask, Visibility

KEY_AXES = ("activation_batch", "activation_kv_heads", "activation_length", None)


@flax.struct.dataclass
class KeyValues:
    """Keys and values of one layer, also used as the layer's cache.

    Heads come before positions, in the order that the products read: in another layout the cache
    would be copied for each generated token.
    """

    key: Float[Array, "B G S K"]
    value: Float[Array, "B G S K"]

    @classmethod
    def from_positions(
        cls, key: Float[Array, "B S G K"], value: Float[Array, "B S G K"]
    ) -> "KeyValues":
        """Make keys and values from arrays with positions before heads."""
        return cls(key=jnp.swapaxes(key, 1, 2), value=jnp.swapaxes(value, 1, 2))

    def by_position(self) -> tuple[Float[Array, "B S G K"], Float[Array, "B S G K"]]:
        """Return the keys and the values, with positions before heads."""
        return jnp.swapaxes(self.key, 1, 2), jnp.swapaxes(self.value, 1, 2)

    @property
    def length(self) -> int:
        """S, the number of keys."""
        return self.key.shape[2]

    def write(self, new: "KeyValues", *, slot: int | Int[Array, ""]) -> "KeyValues":
        """Return a copy with `new` (one or more slots) written from `slot` on."""

        def update(old: Array, fresh: Array) -> Array:
            old = jax.lax.dynamic_update_slice_in_dim(old, fresh.astype(old.dtype), slot, axis=2)
            return partitioning.constrain(old, KEY_AXES)

        return jax.tree.map(update, self, new)

    def write_ring(self, new: "KeyValues", *, slot: int | Int[Array, ""]) -> "KeyValues":
        """Return a copy with `new` written to these W entries as a ring: slot s at s modulo W."""
        size, length = self.length, new.length
        count = min(size, length)
        entries = (slot + length - count + jnp.arange(count)) % size

        def update(old: Array, fresh: Array) -> Array:
            old = old.at[:, :, entries].set(fresh[:, :, length - count :].astype(old.dtype))
            return partitioning.constrain(old, KEY_AXES)

        return jax.tree.map(update, self, new)

    def append(self, new: "KeyValues") -> "KeyValues":
        """Concatenate these slots and the slots of `new`."""
        return jax.tree.map(lambda x, y: jnp.concatenate([x, y.astype(x.dtype)], 2), self, new)


@flax.struct.dataclass
class LayerCache:
    """One layer's cache: keys and values of the positions so far, and of the encoder's output.

    `memory` has one row per prompt; `own` has adjacent rows for the beams or samples of a prompt.
    """

    own: KeyValues
    memory: KeyValues | None = None

    def repeat(self, times: int) -> "LayerCache":
        """Repeat each row of `own` `times` times."""
        repeated = jax.tree.map(lambda x: jnp.repeat(x, times, axis=x.ndim - 4), self.own)
        return dataclasses.replace(self, own=repeated)

    def reorder(self, rows: Int[Array, " B"]) -> "LayerCache":
        """Select rows of `own`; each new row must be of the same prompt."""
        # Scanned layers add an axis before the rows.
        selected = jax.tree.map(lambda x: jnp.take(x, rows, axis=x.ndim - 4), self.own)
        return dataclasses.replace(self, own=selected)

    def from_slots(self, slots: Int[Array, "B S"]) -> "LayerCache":
        """Return a cache with the content of slot `slots[b, s]` in slot s of row b.

        Raises:
            ValueError: the layer has a window, and so keeps fewer slots.
        """

        def take(x: Array) -> Array:
            if x.shape[-2] != slots.shape[1]:
                raise ValueError(
                    f"a layer with a window keeps {x.shape[-2]} of {slots.shape[1]} slots, and "
                    "its rows cannot be moved: use a model without a window"
                )
            indices = slots.reshape((1,) * (x.ndim - 4) + (len(slots), 1, -1, 1))
            return jnp.take_along_axis(x, indices, axis=x.ndim - 2)

        return LayerCache(own=jax.tree.map(take, self.own), memory=self.memory)


@flax.struct.dataclass
class Cache:
    """The key-value cache of all layers, with S slots that all rows fill in step.

    Prompts are left-padded, so that they end in the same slot; positions are counted from the first
    token of each row.

    Attributes:
        layers: keys and values, [N, B, G, S, K] for a scanned stack; for an unrolled stack a tuple
            of [B, G, S, K], which are updated in place.
        real: True in slots that hold a token, not padding.
        starts: the slot of each row's first token.
        length: the number of slots in use.
        memory_real: True at positions of the encoder's output that are not padding, with one row
            per prompt; None without an encoder.
    """

    layers: PyTree
    real: Bool[Array, "B S"]
    starts: Int[Array, " B"]
    length: Int[Array, ""]
    memory_real: Bool[Array, "P M"] | None = None

    def repeat(self, times: int) -> "Cache":
        """Repeat each row `times` times, adjacently, for the samples or beams of its prompt."""
        return dataclasses.replace(
            self,
            layers=self._each_layer(lambda layer: layer.repeat(times)),
            real=jnp.repeat(self.real, times, axis=0),
            starts=jnp.repeat(self.starts, times),
        )

    def reorder(self, rows: Int[Array, " B"]) -> "Cache":
        """Return a cache whose row i is this cache's row `rows[i]`, a row of the same prompt."""
        return dataclasses.replace(
            self,
            layers=self._each_layer(lambda layer: layer.reorder(rows)),
            real=self.real[rows],
            starts=self.starts[rows],
        )

    def moved(self, by: Int[Array, " B"]) -> "Cache":
        """Move each row `by` slots to the right, so that rows of different lengths end together.

        Positions count from the first token of a row, so positions and distances do not change.

        Raises:
            ValueError: a layer has a window.
        """
        slots = jnp.arange(self.real.shape[1])[None]
        old = slots - by[:, None]
        sources = jnp.maximum(old, 0)
        real = jnp.take_along_axis(self.real, sources, axis=1) & (old >= 0) & (slots < self.length)
        layers = self._each_layer(lambda layer: layer.from_slots(sources))
        return dataclasses.replace(self, layers=layers, real=real, starts=self.starts + by)

    def _each_layer(self, change: Callable[[LayerCache], LayerCache]) -> PyTree:
        return jax.tree.map(change, self.layers, is_leaf=lambda x: isinstance(x, LayerCache))

    def push(
        self, real: Bool[Array, "B T"], *, visibility: Visibility, first: bool = False
    ) -> tuple["Cache", AttentionMask, Int[Array, "B T"]]:
        """Add T slots; return the new cache, and the mask and positions of the new slots.

        Args:
            real: False in slots that hold padding.
            first: whether the cache is empty; the mask then covers only the new slots
                (`Shared.first`), and otherwise all slots.
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
    """Make an empty cache for prompts.

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
