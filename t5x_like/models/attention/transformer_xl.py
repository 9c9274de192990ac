"""Transformer-XL's attention, with relative positions in the scores."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from t5x_like.models.attention.cache import KeyValues
from t5x_like.models.attention.masks import AttentionMask
from t5x_like.models.attention.multi_head import Attention
from t5x_like.models.attention.relative_shift import align_distances
from t5x_like.models.embeddings.sinusoidal import SinusoidalPositions


class TransformerXLAttention(Attention):
    """Causal attention whose scores depend on content and on relative position.

    Dai et al. 2019, section 3.3: with q_i the query in slot i, k_j the key in slot j, R_d the sines
    and cosines of the distance d, and W, u, v learned, the score before scaling is

        (q_i + u) k_j + (q_i + v) W R_{i-j}.

    There is no longest distance. Each layer has its own W, u and v, as in Rae et al. 2021. The mask
    must be causal: the score of a key after its query is meaningless.

    Attributes:
        features: D, the width of the sinusoidal vectors; even.
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
        """The query plus u, and the scaled scores of the distances plus `bias`."""
        # The distances of the last query: the other queries have the same ones, shifted.
        keys = keys_values.length
        distances = mask.first_slot + query.shape[1] - 1 - jnp.arange(keys)
        # einsum takes the cheaper order: for many queries it projects the sines, once for all rows;
        # for one query (a decoding step) it projects the query.
        scores = jnp.einsum(
            "BTHK,DHK,SD->BHTS",
            (query + self.distance_bias.astype(query.dtype)) * self.scale_factor,
            self.distance_kernel.astype(query.dtype),
            self.sines(distances[None], length=keys)[0],
        )
        scores = align_distances(scores, keys=keys)
        content = query + self.content_bias.astype(query.dtype)
        return content, scores if bias is None else bias + scores
