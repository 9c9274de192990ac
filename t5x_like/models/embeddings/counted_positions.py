"""Embeddings whose positions count tokens and not places, as fairseq's models have them."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.models.networks.encoder import Embeddings
from t5x_like.models.networks.encoder_decoder import Batch


class CountedEmbeddings(Embeddings):
    """norm(token + position), where a position is the number of tokens before, without padding.

    So a text has the same vectors wherever its padding is. Padding has position -1: the row of the
    table before the first, which is why `make_positions` must have an offset.
    """

    def __call__(self, batch: Batch) -> Float[Array, "B L E"]:
        """The sum of the vectors of each place, normed."""
        real = batch["encoder_segment_ids"] > 0
        positions = batch.get("encoder_positions", jnp.cumsum(real, axis=1, dtype=jnp.int32) - 1)
        return super().__call__({**batch, "encoder_positions": jnp.where(real, positions, -1)})
