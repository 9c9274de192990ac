"""Sinusoidal positions: no parameters, and no longest text."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.models.compute import Compute


class SinusoidalPositions(nn.Module):
    """A fixed vector for each position: Vaswani et al. 2017, section 3.5.

    With D features, position p has sin(p / 10000^(2i/D)) in feature 2i and the cosine of the same
    angle in feature 2i + 1. The vector of p + k is the vector of p rotated by angles that depend
    on k alone.
    """

    features: int
    compute: Compute = Compute()

    def __call__(
        self, positions: Int[Array, "B L"] | None, *, length: int
    ) -> Float[Array, "B L D"] | Float[Array, "1 L D"]:
        """The vectors of `positions`, or of 0 to `length` - 1 if they are None.

        Raises:
            ValueError: an odd number of features.
        """
        if self.features % 2:
            raise ValueError(
                f"model.d_model={self.features} is odd: sinusoidal positions are pairs of a sine "
                "and a cosine, so it must be even"
            )
        if positions is None:
            positions = jnp.arange(length)[None]
        # In float32 for every model.dtype: in bfloat16 positions 256 and 257 are equal.
        exponents = jnp.arange(0, self.features, 2, dtype=jnp.float32) / self.features
        angles = positions[..., None].astype(jnp.float32) * 10_000.0**-exponents
        return self._arrange(jnp.sin(angles), jnp.cos(angles)).astype(self.compute.dtype)

    def _arrange(
        self, sines: Float[Array, "B L D/2"], cosines: Float[Array, "B L D/2"]
    ) -> Float[Array, "B L D"]:
        pairs = jnp.stack([sines, cosines], axis=-1)
        return pairs.reshape(*sines.shape[:-1], self.features)


class SinesThenCosines(SinusoidalPositions):
    """The same numbers, with all sines in the first half of the features: Pegasus and Marian."""

    def _arrange(
        self, sines: Float[Array, "B L D/2"], cosines: Float[Array, "B L D/2"]
    ) -> Float[Array, "B L D"]:
        return jnp.concatenate([sines, cosines], axis=-1)
