"""Multi-head attention with grouped keys, over an interchangeable core."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.models.attention.banded import banded
from t5x_like.models.attention.masks import AttentionMask
from t5x_like.models.linear import Initializer, Linear
from t5x_like.names import choose

KEY_AXES = ("activation_batch", "activation_length", "activation_kv_heads", None)
Position = Callable[[Float[Array, "B L H K"], Int[Array, "B L"] | None], Float[Array, "B L H K"]]


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


class Core(Protocol):
    """Computes softmax(scale * q k^T + bias) v under a mask."""

    def __call__(
        self,
        query: Float[Array, "B T H K"],
        keys_values: KeyValues,
        *,
        bias: Float[Array, "B H T S"] | None,
        mask: AttentionMask,
        scale: float,
        dropout: float = 0.0,
        dropout_rng: Array | None = None,
    ) -> Float[Array, "B T H K"]:
        """The weighted values; `dropout_rng` None means no dropout."""


def dense_core(
    query: Float[Array, "B T H K"],
    keys_values: KeyValues,
    *,
    bias: Float[Array, "B H T S"] | None,
    mask: AttentionMask,
    scale: float,
    dropout: float = 0.0,
    dropout_rng: Array | None = None,
) -> Float[Array, "B T H K"]:
    """Attention through the full score matrix, softmax in float32 (Vaswani et al. 2017, eq. 1).

    Query heads are grouped over the G heads of keys (G = H is multi-head, G = 1 multi-query).
    Dropout falls on the weights and is the same for every query, as T5 has it.
    """
    batch, targets, heads, width = query.shape
    groups = keys_values.key.shape[2]
    sources = keys_values.key.shape[1]
    # Scaling the query is T*H*K products; scaling the scores would be T*S*H.
    query = (query if scale == 1.0 else query * scale).reshape(
        batch, targets, groups, heads // groups, width
    )
    scores = jnp.einsum(
        "BTGRK,BSGK->BGRTS", query, keys_values.key, preferred_element_type=jnp.float32
    ).reshape(batch, heads, targets, sources)
    if bias is not None:
        scores = scores + bias.astype(scores.dtype)
    allowed = mask.dense(queries=targets, keys=sources)
    if allowed is not None:
        # Finite, so that a query that sees nothing (padding) gives a mean and not NaN.
        scores = jnp.where(allowed, scores, -1e9)
    weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    if dropout_rng is not None and dropout > 0.0:
        keep = jax.random.bernoulli(dropout_rng, 1.0 - dropout, (batch, heads, 1, sources))
        weights = weights * keep.astype(weights.dtype) / (1.0 - dropout)
    weights = weights.reshape(batch, groups, heads // groups, targets, sources)
    out = jnp.einsum("BGRTS,BSGK->BTGRK", weights, keys_values.value)
    return out.reshape(batch, targets, heads, width)


def cudnn_core(
    query: Float[Array, "B T H K"],
    keys_values: KeyValues,
    *,
    bias: Float[Array, "B H T S"] | None,
    mask: AttentionMask,
    scale: float,
    dropout: float = 0.0,
    dropout_rng: Array | None = None,
) -> Float[Array, "B T H K"]:
    """Attention through cuDNN's fused kernel: an NVIDIA GPU, 16-bit types, no score matrix.

    Raises:
        ValueError: on float32, which the kernel does not take, or on dropout of the weights,
            which it would draw by its own generator and so not the same on every layout.
    """
    if query.dtype not in (jnp.bfloat16, jnp.float16):
        raise ValueError(
            f"model.attention='cudnn' needs model.dtype='bfloat16', not {query.dtype}; "
            "use model.attention='dense' for float32"
        )
    if dropout_rng is not None and dropout > 0.0:
        raise ValueError("model.attention='cudnn' has no dropout: set model.dropout=0.0 or 'dense'")
    allowed = mask.dense(queries=query.shape[1], keys=keys_values.key.shape[1])
    return jax.nn.dot_product_attention(
        query,
        keys_values.key,
        keys_values.value,
        bias=None if bias is None else bias.astype(query.dtype),
        mask=allowed,
        scale=scale,
        implementation="cudnn",
    )


def select_core(name: str, *, dtype: Any, dropout: float) -> Core:
    """The core called `dense` or `cudnn`, or for `auto` the best that this device has.

    `auto` is `cudnn` on an NVIDIA GPU for 16-bit types without dropout, `dense` elsewhere.

    Raises:
        ValueError: for a name that is none of the three.
    """
    cores: dict[str, Core] = {"dense": dense_core, "cudnn": cudnn_core}
    if name == "auto":
        fused = jax.default_backend() == "gpu" and jnp.dtype(dtype).itemsize == 2 and dropout == 0.0
        return cudnn_core if fused else dense_core
    return choose("model.attention", name, {"auto": dense_core, **cores})


class Attention(nn.Module):
    """Projections around a core; keys and values are made apart, so that a caller may keep them.

    `keys_values` projects the context, and calling the module attends to what that gave. Self
    and cross attention, and attention over a cache, differ only in where the context is from.

    Attributes:
        heads: H, query heads.
        width: K, of one head.
        kv_heads: G, heads of keys and values; must divide H. None means H.
        position: acts on queries and keys, given their positions (rotary), or None.
        core: computes the weighted values.
        window: keys that a query sees, its own the last; None for all (Child et al. 2019).
        scale: of the dot products. None means K^-0.5; T5 has 1.0 and a smaller initial query.
        query_init, kernel_init, out_init: initializers of the kernels, given
            as matrices [D, H*K] and [H*K, D].
    """

    heads: int
    width: int
    kv_heads: int | None = None
    position: Position | None = None
    core: Core = dense_core
    window: int | None = None
    scale: float | None = None
    dropout: float = 0.0
    use_bias: bool = False
    query_init: Initializer = nn.initializers.lecun_normal()
    kernel_init: Initializer = nn.initializers.lecun_normal()
    out_init: Initializer = nn.initializers.lecun_normal()
    dtype: Any = jnp.float32

    def setup(self) -> None:
        groups = self.kv_heads or self.heads
        if self.heads % groups:
            raise ValueError(f"heads={self.heads} is not a multiple of kv_heads={groups}")

        # A single head cannot be cut, and every device that has heads of queries needs it.
        axis = "kv_heads" if groups > 1 else "single_head"
        self.query = self._into_heads(self.heads, "heads", self.query_init)
        self.key = self._into_heads(groups, axis, self.kernel_init)
        self.value = self._into_heads(groups, axis, self.kernel_init)
        self.scale_factor = self.width**-0.5 if self.scale is None else self.scale

    def _into_heads(self, heads: int, axis: str, init: Initializer) -> Linear:
        return Linear(
            (heads, self.width),
            axes=("embed", axis, "kv"),
            use_bias=self.use_bias,
            kernel_init=init,
            dtype=self.dtype,
        )

    def keys_values(
        self, context: Float[Array, "B S D"], positions: Int[Array, "B S"] | None = None
    ) -> KeyValues:
        """The keys and values of a context, ready for the core or a cache."""
        key, value = self.key(context), self.value(context)
        if self.position is not None:
            key = self.position(key, positions)
        return KeyValues(
            key=nn.with_logical_constraint(key, KEY_AXES),
            value=nn.with_logical_constraint(value, KEY_AXES),
        )

    def empty_cache(self, *, batch: int, slots: int) -> KeyValues:
        """Zeros to write keys and values into, no more than the window; needs no parameters."""
        slots = min(slots, self.window or slots)
        shape = (batch, slots, self.kv_heads or self.heads, self.width)
        return KeyValues(key=jnp.zeros(shape, self.dtype), value=jnp.zeros(shape, self.dtype))

    def remember(
        self, new: KeyValues, cache: KeyValues | None, *, mask: AttentionMask, first: bool
    ) -> tuple[KeyValues, AttentionMask, KeyValues | None]:
        """What to attend to, under which mask, and the cache with the new keys and values.

        Args:
            new: of the slots that begin at `mask.offset`.
            mask: of all slots so far; of the new alone where `first`, or without a cache.
            first: nothing is in the cache yet.
        """
        if self.window is None:
            kept = None if cache is None else cache.write(new, slot=mask.offset)
            return (new if first or kept is None else kept), mask, kept
        mask = dataclasses.replace(mask, window=self.window)
        if cache is None:
            return new, mask, None
        kept = cache.write_around(new, slot=mask.offset)
        if first:
            return new, mask, kept
        # With the new beside the ring, not in it: several new ones may not push out what the
        # first of them still sees.
        size, length = cache.key.shape[1], new.key.shape[1]
        before = mask.offset - 1 - (mask.offset - 1 - jnp.arange(size)) % size
        mask = mask.at_slots(jnp.concatenate([before, mask.offset + jnp.arange(length)]))
        return cache.followed_by(new), mask, kept

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        keys_values: KeyValues,
        *,
        mask: AttentionMask,
        bias: Float[Array, "B H T S"] | None = None,
        positions: Int[Array, "B T"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "B T D"]:
        """What each position of `x` reads from `keys_values`."""
        query = self.query(x)
        if self.position is not None:
            query = self.position(query, positions)
        axes = ("activation_batch", "activation_length", "activation_heads", None)
        query = nn.with_logical_constraint(query, axes)
        drops = self.dropout > 0.0 and not deterministic
        query, bias = self.relate(query, bias, keys=keys_values.key.shape[1], offset=mask.offset)
        core = self.core
        apart = mask.key_slots is not None  # a cache's: a few queries and no more keys than needed
        if self.window is not None and bias is None and not apart:
            core = banded(core, window=self.window)
        values = core(
            query,
            keys_values,
            bias=bias,
            mask=mask,
            scale=self.scale_factor,
            dropout=self.dropout,
            dropout_rng=self.make_rng("dropout") if drops else None,
        )
        values = nn.with_logical_constraint(values, axes)
        return Linear(
            (x.shape[-1],),
            axes=("heads", "kv", "embed"),
            contract=2,
            use_bias=self.use_bias,
            kernel_init=self.out_init,
            dtype=self.dtype,
            name="out",
        )(values)

    def relate(
        self,
        query: Float[Array, "B T H K"],
        bias: Float[Array, "B H T S"] | None,
        *,
        keys: int,
        offset: int | Int[Array, ""],
    ) -> tuple[Float[Array, "B T H K"], Float[Array, "B H T S"] | None]:
        """Query and bias as the core gets them; a subclass puts positions here that need both.

        Args:
            keys: S.
            offset: the slot of the first query.
        """
        del keys, offset
        return query, bias
