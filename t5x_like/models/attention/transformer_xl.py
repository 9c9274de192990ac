"""Attention over the distances of Transformer-XL: positions that only a query with its key has."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from t5x_like.models.attention.cache import KeyValues
from t5x_like.models.attention.masks import AttentionMask
from t5x_like.models.attention.multi_head import Attention
from t5x_like.models.embeddings.sinusoidal import SinusoidalPositions


class TransformerXLAttention(Attention):
    """Causal attention that scores a key by what it holds and by how far back it is.

    Dai et al. 2019, section 3.3: with q_i the query in slot i, k_j the key in slot j, R_d the sines
    and cosines of the distance d, and W, u, v learned, the score before scaling is

        (q_i + u) k_j + (q_i + v) W R_{i-j}.

    Nothing is added to a token's vector and no distance is the longest. W, u and v are each layer's
    own, as in Rae et al. 2021. The mask has to be causal: a key after its query gets the score of
    no distance in particular.

    Attributes:
        features: D, of the sines; even.
    """

    features: int = dataclasses.field(kw_only=True)

    def setup(self) -> None:
        super().setup()

        def init(key: Array, shape: tuple[int, ...]) -> Array:
            matrix = (self.features, self.heads * self.width)
            return self.kernel_init(key, matrix).reshape(shape)

        def zeros(name: str) -> Array:
            boxed = nn.with_logical_partitioning(nn.initializers.zeros, ("heads", "kv"))
            return self.param(name, boxed, (self.heads, self.width))

        self.sines = SinusoidalPositions(features=self.features, dtype=self.dtype)
        self.distance_kernel = self.param(
            "distance_kernel",
            nn.with_logical_partitioning(init, ("embed", "heads", "kv")),
            (self.features, self.heads, self.width),
        )
        self.content_bias = zeros("content_bias")
        self.distance_bias = zeros("distance_bias")

    def prepare_scores(
        self,
        query: Float[Array, "B T H K"],
        keys_values: KeyValues,
        bias: Float[Array, "B H T S"] | None,
        *,
        mask: AttentionMask,
        extra: PyTree,
    ) -> tuple[Float[Array, "B T H K"], Float[Array, "B H T S"]]:
        """The query plus u; the scaled scores of the distances, with `bias` if there is one."""
        # Of the last query to each key: those of the others are the same ones, some places on.
        keys = keys_values.key.shape[1]
        distances = mask.offset + query.shape[1] - 1 - jnp.arange(keys)
        # The cheapest order of the two products is taken: for many queries the sines are projected,
        # once for all rows; for one, a step of decoding, the query is, and never all the sines.
        scores = jnp.einsum(
            "BTHK,DHK,SD->BHTS",
            (query + self.distance_bias.astype(query.dtype)) * self.scale_factor,
            self.distance_kernel.astype(query.dtype),
            self.sines(distances[None], length=keys)[0],
        )
        scores = _shift(scores)
        content = query + self.content_bias.astype(query.dtype)
        return content, scores if bias is None else bias + scores


def _shift(scores: Float[Array, "B H T S"]) -> Float[Array, "B H T S"]:
    """Moves row t by T - 1 - t places to the left (Dai et al. 2019, appendix B).

    What comes in from the right is of another row, where the keys are after the query.
    """
    batch, heads, targets, sources = scores.shape
    # With a column more, and taken apart again T places on, each row is one place shorter.
    scores = jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (1, 0)))
    scores = scores.reshape(batch, heads, targets * (sources + 1))[..., targets:]
    return scores.reshape(batch, heads, targets, sources)
