"""What a decoder remembers between tokens."""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from t5x_like.models.blocks import LayerCache
from t5x_like.models.masks import AttentionMask, Visibility


@flax.struct.dataclass
class Cache:
    """The keys and values of the tokens so far, in S slots that all rows fill together.

    Prompts end in the same slot: shorter ones begin later (left padding), and positions are
    counted from each row's own first token.

    Attributes:
        layers: keys and values, [N, B, S, G, K].
        real: slots that hold a token.
        starts: the slot of each row's first token.
        length: slots used.
        memory_real: places of the memory that hold a token, or None without a memory.
    """

    layers: LayerCache
    real: Bool[Array, "B S"]
    starts: Int[Array, "B"]
    length: Int[Array, ""]
    memory_real: Bool[Array, "B M"] | None = None

    def gather(self, rows: Int[Array, "b"]) -> "Cache":
        """The cache of other rows: repeated for samples, reordered for beams."""
        return dataclasses.replace(
            self,
            layers=jax.tree.map(lambda x: x[:, rows], self.layers),
            real=self.real[rows],
            starts=self.starts[rows],
            memory_real=None if self.memory_real is None else self.memory_real[rows],
        )

    def push(
        self, real: Bool[Array, "B T"], *, visibility: Visibility
    ) -> tuple["Cache", AttentionMask, Int[Array, "B T"]]:
        """Counts T more slots in; their mask over the slots, and their positions."""
        first = self.length
        slots = jax.lax.dynamic_update_slice_in_dim(self.real, real, first, axis=1)
        cache = dataclasses.replace(self, real=slots, length=first + real.shape[1])
        mask = AttentionMask(
            key_segments=slots.astype(jnp.int32), offset=first, visibility=visibility
        )
        positions = first + jnp.arange(real.shape[1])[None] - self.starts[:, None]
        return cache, mask, jnp.maximum(positions, 0)


def open_cache(
    layers: LayerCache,
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
