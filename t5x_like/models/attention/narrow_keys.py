"""Attention whose queries and keys are narrower than its values."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.models.attention.multi_head import Attention
from t5x_like.models.linear import Initializer, Linear


class NarrowKeysAttention(Attention):
    """Attention with d_k below d_v: Vaswani et al. 2017, section 3.2.2 and rows (B) of table 3.

    Queries and keys are padded with zeros to the width of the values, which changes no dot product:
    all cores and caches work, at the cost of attention of the full width.

    Attributes:
        key_width: d_k; `width` is d_v.
    """

    key_width: int = 1

    def setup(self) -> None:
        if not 1 <= self.key_width <= self.width:
            raise ValueError(
                f"model.d_k={self.key_width} must be from 1 to model.d_v={self.width}, the width "
                "of the values"
            )
        groups = self.kv_heads or self.heads
        self.query = self._narrow("query", self.heads, "heads", self.query_init)
        self.key = self._narrow("key", groups, "kv_heads", self.kernel_init)
        self.value = self._into_heads("value", groups, "kv_heads", self.kernel_init)
        self.scale_factor = self.key_width**-0.5 if self.scale is None else self.scale

    def _narrow(self, name: str, heads: int, axis: str, init: Initializer) -> Linear:
        return _Padded(
            (heads, self.key_width),
            axes=("embed", axis, "kv"),
            use_bias=self._has_bias(name),
            kernel_init=init,
            dtype=self.dtype,
            width=self.width,
        )


class _Padded(Linear):
    """A Linear whose output is padded with zeros to `width`."""

    width: int = 0

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        y = super().__call__(x)
        return jnp.pad(y, [(0, 0)] * (y.ndim - 1) + [(0, self.width - y.shape[-1])])
