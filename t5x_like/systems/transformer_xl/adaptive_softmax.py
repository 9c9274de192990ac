"""Transformer-XL's adaptive embeddings and adaptive softmax: words in clusters by frequency."""

from typing import NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like import partitioning
from t5x_like.losses.token_cross_entropy import log_probs
from t5x_like.nn.compute import Compute
from t5x_like.nn.embeddings import TokenEmbed, VocabularyProduct
from t5x_like.nn.linear import replicate_last_axis

INIT = nn.initializers.normal(0.02)  # of all matrices of a Transformer-XL


class Cluster(NamedTuple):
    """The embeddings of the words of a cluster.

    Attributes:
        table: their vectors.
        projection: to the width of the layers; None if the vectors have it.
    """

    table: Float[Array, "V E"]
    projection: Float[Array, "E D"] | None


class AdaptiveEmbed(nn.Module):
    """Word embeddings that are narrower for rarer words (Baevski and Auli 2018, section 3).

    Cluster n has vectors of width E = D / k^n, k = `division`, which are projected to D, also in
    the first cluster; with k = 1 there are no projections.

    Attributes:
        features: D.
        cutoffs: the first words of all clusters but the first.
    """

    vocab_size: int
    features: int
    cutoffs: tuple[int, ...]
    division: int = 1
    compute: Compute = Compute()

    def setup(self) -> None:
        starts, ends = (0, *self.cutoffs), (*self.cutoffs, self.vocab_size)
        widths = [self.features // self.division**n for n in range(len(starts))]
        self.clusters = [
            TokenEmbed(
                vocab_size=end - start, features=width, embedding_init=INIT, compute=self.compute
            )
            for start, end, width in zip(starts, ends, widths, strict=True)
        ]
        init = nn.with_logical_partitioning(INIT, ("mlp", "embed"))
        self.projections = [
            self.param(f"projection_{n}", init, (width, self.features))
            if self.division > 1
            else None
            for n, width in enumerate(widths)
        ]

    @property
    def embedding(self) -> tuple[Cluster, ...]:
        """The embeddings of all clusters, for an `AdaptiveHead`."""
        tables = (cluster.embedding for cluster in self.clusters)
        return tuple(map(Cluster, tables, self.projections))

    def __call__(self, tokens: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        """Return the embeddings of `tokens`."""
        total = jnp.zeros((*tokens.shape, self.features), self.compute.dtype)
        for start, cluster, projection in zip(
            (0, *self.cutoffs), self.clusters, self.projections, strict=True
        ):
            in_cluster = (tokens >= start) & (tokens < start + cluster.vocab_size)
            x = cluster(jnp.where(in_cluster, tokens - start, 0))
            if projection is not None:
                x = jnp.einsum("BLE,ED->BLD", x, projection.astype(x.dtype))
            total += jnp.where(in_cluster[..., None], x, 0)
        axes = ("activation_batch", "residual_length", "activation_embed")
        return partitioning.constrain(total, axes)


@flax.struct.dataclass
class AdaptiveProduct:
    """The probabilities of words that are not computed yet, as products for each cluster.

    The softmax of the first product is over the words of the first cluster and over the other
    clusters; the softmax of each other product is over the words of its cluster (Grave et al. 2016,
    section 4.2).

    Attributes:
        clusters: the logits of each cluster's words, in the first followed by the logits of the
            other clusters.
    """

    clusters: tuple[VocabularyProduct, ...]

    @property
    def _first(self) -> int:
        """The number of words of the first cluster."""
        return self.clusters[0].shape[-1] - len(self.clusters) + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `logits()`."""
        rest = sum(cluster.shape[-1] for cluster in self.clusters[1:])
        return *self.clusters[0].shape[:-1], self._first + rest

    def logits(self) -> Float[Array, "B L V"]:
        """Compute the float32 log-probabilities of all words."""
        head = jax.nn.log_softmax(self.clusters[0].logits())
        parts = [head[..., : self._first]]
        for n, cluster in enumerate(self.clusters[1:]):
            column = self._first + n
            parts.append(head[..., column : column + 1] + jax.nn.log_softmax(cluster.logits()))
        return jnp.concatenate(parts, axis=-1)

    def log_probs(self, targets: Int[Array, "B L"]) -> Float[Array, "B L"]:
        """Return the log-probability of each target; NaN outside of the vocabulary.

        Only the logits of one cluster, or of a part of a large cluster, exist at a time.
        """
        start, total = self._first, jnp.zeros(targets.shape)
        head = jnp.where(targets < start, targets, 0)
        for n, cluster in enumerate(self.clusters[1:]):
            size = cluster.shape[-1]
            in_cluster = (targets >= start) & (targets < start + size)
            within = log_probs(cluster, jnp.where(in_cluster, targets - start, 0))
            total += jnp.where(in_cluster, within, 0.0)
            head = jnp.where(in_cluster, self._first + n, head)
            start += size
        known = (targets >= 0) & (targets < start)
        return jnp.where(known, total + log_probs(self.clusters[0], head), jnp.nan)


class AdaptiveHead(nn.Module):
    """An adaptive softmax over clusters of words, tied to their embeddings (Grave et al. 2016).

    As in the code, the first cluster has its own projection, and the others share the projections
    of the embeddings.
    """

    def __call__(
        self, x: Float[Array, "B L D"], embedding: tuple[Cluster, ...]
    ) -> Float[Array, "B L V"]:
        """Return float32 log-probabilities."""
        return self.product(x, embedding).logits()

    @nn.compact
    def product(self, x: Float[Array, "B L D"], embedding: tuple[Cluster, ...]) -> AdaptiveProduct:
        """Return the probabilities as products that are not computed yet."""
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
        products = []
        for n, (table, projection) in enumerate(embedding):
            bias = self.param(f"bias_{n}", zeros, (table.shape[0],))
            if n == 0:
                others = (len(embedding) - 1, table.shape[1])
                init = nn.with_logical_partitioning(INIT, ("classes", "embed"))
                none = nn.with_logical_partitioning(nn.initializers.zeros, ("classes",))
                table = jnp.concatenate([table, self.param("cluster_kernel", init, others)])
                bias = jnp.concatenate([bias, self.param("cluster_bias", none, others[:1])])
                if projection is not None:
                    init = nn.with_logical_partitioning(INIT, ("mlp", "embed"))
                    projection = self.param("projection", init, projection.shape)
            hidden = x
            if projection is not None:
                hidden = replicate_last_axis(
                    jnp.einsum("BLD,ED->BLE", x, projection.astype(x.dtype))
                )
            products.append(VocabularyProduct(hidden, table, bias))
        return AdaptiveProduct(tuple(products))
