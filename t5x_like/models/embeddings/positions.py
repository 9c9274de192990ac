"""Position embeddings that are added to token embeddings: learned, or sinusoidal."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.models.compute import Compute
from t5x_like.models.types import Batch


def positions_of(batch: Batch, side: str, tokens: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """Return the batch's positions of a side (`encoder`, `decoder`), by default 0, 1, ..."""
    arange = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return batch.get(f"{side}_positions", arange)


class LearnedPositions(nn.Module):
    """A learned embedding for each position (Devlin et al. 2018, figure 2).

    Attributes:
        length: rows of the table.
        features: width of the embeddings.
        offset: the row of position 0; fairseq's models reserve the first 2 rows for padding.
    """

    length: int
    features: int
    offset: int = 0
    embedding_init: Any = nn.initializers.normal(0.02)
    compute: Compute = Compute()

    @nn.compact
    def __call__(
        self, positions: Int[Array, "B L"] | None, *, length: int
    ) -> Float[Array, "B L D"] | Float[Array, "1 L D"]:
        """Return the embeddings of `positions`, or of 0 to `length` - 1 if they are None.

        Raises:
            ValueError: the sequence is longer than the table.
        """
        if length > self.length - self.offset:
            raise ValueError(
                f"{length} tokens are more than the {self.length - self.offset} positions that "
                "the model has (model.positions): shorten the text, or train with more positions"
            )
        init = nn.with_logical_partitioning(self.embedding_init, ("positions", "embed"))
        table = self.param("embedding", init, (self.length, self.features))
        table = table.astype(self.compute.dtype)
        if positions is None:  # a slice: its gradient needs no scatter
            return table[None, self.offset : self.offset + length]
        return jnp.take(table, positions + self.offset, axis=0)


class AddPositions(nn.Module):
    """The input of a tower: scaled token embeddings plus position embeddings.

    Attributes:
        make_positions: factory of `LearnedPositions` or of a module with the same call.
        make_norm: factory of a norm of the sum (BART), or None.
        scale: factor on the token embeddings; D^0.5 in Vaswani et al. 2017, section 3.4.
    """

    make_positions: Callable[..., nn.Module]
    make_norm: Callable[..., nn.Module] | None = None
    scale: float = 1.0

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L D"], positions: Int[Array, "B L"]
    ) -> Float[Array, "B L D"]:
        """Return the sum, normed if there is a norm."""
        x = x * self.scale if self.scale != 1.0 else x
        x = x + self.make_positions(name="position")(positions, length=x.shape[1])
        return x if self.make_norm is None else self.make_norm(name="norm")(x)


# ---- Sinusoidal positions: no parameters, and no limit on the length of a text.


class SinusoidalPositions(nn.Module):
    """A fixed vector for each position: Vaswani et al. 2017, section 3.5.

    With D features, position p has sin(p / 10000^(2i/D)) in feature 2i and the cosine of the same
    angle in feature 2i + 1. The vector of p + k is the vector of p rotated by angles that depend
    only on k.
    """

    features: int
    compute: Compute = Compute()

    def __call__(
        self, positions: Int[Array, "B L"] | None, *, length: int
    ) -> Float[Array, "B L D"] | Float[Array, "1 L D"]:
        """Return the vectors of `positions`, or of 0 to `length` - 1 if they are None.

        Raises:
            ValueError: the number of features is odd.
        """
        if self.features % 2:
            raise ValueError(
                f"model.d_model={self.features} is odd: sinusoidal positions are pairs of a sine "
                "and a cosine, so it must be even"
            )
        if positions is None:
            positions = jnp.arange(length)[None]
        # Always in float32: in bfloat16 positions 256 and 257 are equal.
        exponents = jnp.arange(0, self.features, 2, dtype=jnp.float32) / self.features
        angles = positions[..., None].astype(jnp.float32) * 10_000.0**-exponents
        return self._arrange(jnp.sin(angles), jnp.cos(angles)).astype(self.compute.dtype)

    def _arrange(
        self, sines: Float[Array, "B L D/2"], cosines: Float[Array, "B L D/2"]
    ) -> Float[Array, "B L D"]:
        pairs = jnp.stack([sines, cosines], axis=-1)
        return pairs.reshape(*sines.shape[:-1], self.features)


class SinesThenCosines(SinusoidalPositions):
    """Sinusoidal positions with all sines before all cosines, as in Pegasus and Marian."""

    def _arrange(
        self, sines: Float[Array, "B L D/2"], cosines: Float[Array, "B L D/2"]
    ) -> Float[Array, "B L D"]:
        return jnp.concatenate([sines, cosines], axis=-1)
