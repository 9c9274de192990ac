"""Multi-head attention with grouped key heads and an interchangeable core."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, PyTree

from t5x_like import partitioning
from t5x_like.nn.attention.cache import KEY_AXES, KeyValues
from t5x_like.nn.attention.cores import (
    CONTEXT,
    KEY,
    QUERY,
    VALUE,
    for_window,
    masked_scores,
    weighted_values,
)
from t5x_like.nn.attention.positions import AttentionMask, RelativeBias
from t5x_like.nn.compute import Compute
from t5x_like.nn.linear import Initializer, Linear

Position = Callable[[Float[Array, "B L H K"], Int[Array, "B L"] | None], Float[Array, "B L H K"]]


class Attention(nn.Module):
    """Multi-head attention: projections around a core (Vaswani et al. 2017, section 3.2.2).

    `keys_values` projects the context, and `attend` attends to the result. Self-attention,
    cross-attention and attention over a key-value cache differ only in the context.

    Attributes:
        heads: H, the number of query heads.
        width: K, the width of a head.
        kv_heads: G, the number of key and value heads, which divides H; None: H.
        position: a function of queries or keys and their positions (rotary), or None.
        window: the number of keys that a query attends to, up to its own; None: all (Child et al.
            2019).
        scale: factor of the dot products; None: K^-0.5. T5 uses 1.0 and a smaller initialization of
            the query kernel.
        use_bias: whether all projections have a bias, or the names of the projections with a bias:
            any of `query`, `key`, `value` and `out`.
        query_init, kernel_init, out_init: initializers of the kernels as matrices [D, H*K] and
            [H*K, D].
        compute: its `dropout` applies to the attention weights.
    """

    heads: int
    width: int
    kv_heads: int | None = None
    position: Position | None = None
    window: int | None = None
    scale: float | None = None
    use_bias: bool | tuple[str, ...] = False
    query_init: Initializer = nn.initializers.lecun_normal()
    kernel_init: Initializer = nn.initializers.lecun_normal()
    out_init: Initializer = nn.initializers.lecun_normal()
    compute: Compute = Compute()

    def setup(self) -> None:
        groups = self.kv_heads or self.heads
        if self.heads % groups:
            raise ValueError(f"heads={self.heads} is not a multiple of kv_heads={groups}")

        # A single head cannot be sharded: every device with query heads needs it.
        axis = "kv_heads" if groups > 1 else "single_head"
        self.query = self._into_heads("query", self.heads, "heads", self.query_init)
        self.key = self._into_heads("key", groups, axis, self.kernel_init)
        self.value = self._into_heads("value", groups, axis, self.kernel_init)
        self.scale_factor = self.width**-0.5 if self.scale is None else self.scale

    def _into_heads(self, name: str, heads: int, axis: str, init: Initializer) -> Linear:
        return Linear(
            (heads, self.width),
            axes=("embed", axis, "kv"),
            use_bias=self._has_bias(name),
            kernel_init=init,
            compute=self.compute,
        )

    def _has_bias(self, name: str) -> bool:
        return self.use_bias if isinstance(self.use_bias, bool) else name in self.use_bias

    def keys_values(
        self, context: Float[Array, "B S D"], positions: Int[Array, "B S"] | None = None
    ) -> KeyValues:
        """Return the keys and values of a context, for the core or a cache."""
        key, value = self.key(context), self.value(context)
        key = self._at_positions(key, positions, "activation_kv_heads")
        made = KeyValues.from_positions(key, value)
        return KeyValues(
            key=checkpoint_name(partitioning.constrain(made.key, KEY_AXES), KEY),
            value=checkpoint_name(partitioning.constrain(made.value, KEY_AXES), VALUE),
        )

    def _at_positions(
        self, x: Float[Array, "B L H K"], positions: Int[Array, "B L"] | None, axis: str
    ) -> Float[Array, "B L H K"]:
        """Return queries or keys with their positions; `axis` is the logical name of H."""
        if self.position is None:
            return x
        # Sharded by heads, as in the core: with sequence parallelism XLA would otherwise project
        # and rotate all heads of a shard of positions, and exchange float32 arrays afterwards.
        axes = ("activation_batch", "activation_length", axis, None)
        return self.position(partitioning.constrain(x, axes), positions)

    def empty_cache(self, *, batch: int, slots: int) -> KeyValues:
        """Make an empty cache, at most as long as the window; needs no parameters."""
        slots = min(slots, self.window or slots)
        shape = (batch, self.kv_heads or self.heads, slots, self.width)
        dtype = self.compute.dtype
        return KeyValues(key=jnp.zeros(shape, dtype), value=jnp.zeros(shape, dtype))

    def update_cache(
        self, new: KeyValues, cache: KeyValues | None, *, mask: AttentionMask, first: bool
    ) -> tuple[KeyValues, AttentionMask, KeyValues | None]:
        """Write new keys and values to the cache.

        Args:
            new: the keys and values of the slots from `mask.first_slot` on.
            mask: the mask over all slots so far; only over the new slots if `first`, or without a
                cache.
            first: whether the cache is empty.

        Returns:
            The keys and values to attend to, their mask, and the updated cache.
        """
        if self.window is None:
            updated = None if cache is None else cache.write(new, slot=mask.first_slot)
            return (new if first or updated is None else updated), mask, updated
        mask = dataclasses.replace(mask, window=self.window)
        if cache is None:
            return new, mask, None
        updated = cache.write_ring(new, slot=mask.first_slot)
        if first:
            return new, mask, updated
        # Attend to the old ring followed by the new keys: in the new ring, new keys could have
        # overwritten keys that the first new query still attends to.
        size, length = cache.length, new.length
        last = mask.first_slot - 1
        before = last - (last - jnp.arange(size)) % size
        mask = mask.at_slots(jnp.concatenate([before, last + 1 + jnp.arange(length)]))
        return cache.append(new), mask, updated

    def __call__(
        self, x: Float[Array, "B T D"], keys_values: KeyValues, **settings: Any
    ) -> Float[Array, "B T D"]:
        """Return the output of `attend` without the scores."""
        return self.attend(x, keys_values, **settings)[0]

    @nn.compact
    def attend(
        self,
        x: Float[Array, "B T D"],
        keys_values: KeyValues,
        *,
        mask: AttentionMask,
        bias: Float[Array, "B H T S"] | RelativeBias | None = None,
        positions: Int[Array, "B T"] | None = None,
        extra: PyTree = None,
        deterministic: bool = True,
        with_scores: bool = False,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B H T S"] | None]:
        """Return the output for each position of `x`, and optionally the scores.

        Args:
            keys_values: the keys and values of the context, from the method `keys_values`.
            bias: an array, or a `RelativeBias` if the core supports it.
            extra: `Shared.extra`, for `prepare_scores`.
            with_scores: whether to return the scores before the softmax, float32, with
                `cores.MASKED` for masked keys.

        Raises:
            ValueError: `with_scores` with a core that does not compute all scores at once.
        """
        query = self._at_positions(self.query(x), positions, "activation_heads")
        axes = ("activation_batch", "activation_length", "activation_heads", None)
        query = checkpoint_name(partitioning.constrain(query, axes), QUERY)
        query, bias = self.prepare_scores(query, keys_values, bias, mask=mask, extra=extra)
        terms: dict[str, Any] = {"bias": bias, "mask": mask, "scale": self.scale_factor}
        drops = self.compute.dropout > 0.0 and not deterministic
        dropout: dict[str, Any] = {
            "dropout": self.compute.dropout,
            "dropout_rng": self.make_rng("dropout") if drops else None,
            "dropout_broadcast": self.compute.dropout_broadcast,
        }
        scores = None
        if with_scores:
            self._check_core_has_scores()
            scores = masked_scores(query, keys_values, **terms)
            values = weighted_values(scores, keys_values, dtype=query.dtype, **dropout)
        else:
            values = self._core(mask, bias, extra)(query, keys_values, **terms, **dropout)
        values = partitioning.constrain(values, axes)
        if not self.compute.core.names_output:  # otherwise `remat` would save it twice
            values = checkpoint_name(values, CONTEXT)
        out = Linear(
            (x.shape[-1],),
            axes=("heads", "kv", "embed"),
            contract=2,
            use_bias=self._has_bias("out"),
            kernel_init=self.out_init,
            compute=self.compute,
            name="out",
        )
        return out(values), scores

    def _core(self, mask: AttentionMask, bias: Any, extra: PyTree) -> Any:
        del extra
        return for_window(self.compute.core, bias=bias, mask=mask)

    def _check_core_has_scores(self) -> None:
        if not self.compute.core.has_scores:
            raise ValueError(
                "collect has 'attention_scores', and only the dense core computes them all: set "
                "model.attention='dense'"
            )

    def prepare_scores(
        self,
        query: Float[Array, "B T H K"],
        keys_values: KeyValues,
        bias: Any,
        *,
        mask: AttentionMask,
        extra: PyTree,
    ) -> tuple[Float[Array, "B T H K"], Any]:
        """Return the query and the bias for the core; subclasses add terms of the scores here.

        The core computes scale * q k^T + bias, so terms that are added to the bias must be scaled.

        Args:
            keys_values: the S keys and values, including a cache's.
            mask: the first query is in slot `mask.first_slot`; the keys are in slots 0, 1, ... or
                in `mask.key_slots`.
            extra: arrays that all layers share (`Shared.extra`), such as a table of relative
                position embeddings.
        """
        del keys_values, mask, extra
        return query, bias
