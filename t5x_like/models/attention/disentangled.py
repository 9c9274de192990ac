"""Disentangled attention: content and relative position have vectors of their own."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from t5x_like.models.attention.cache import KeyValues
from t5x_like.models.attention.masks import AttentionMask
from t5x_like.models.attention.multi_head import Attention
from t5x_like.models.attention.relative_shift import align_distances
from t5x_like.models.blocks.shared import Shared
from t5x_like.models.linear import Initializer
from t5x_like.models.matrix_product import product


def relative_rows(distances: Sequence[int] | np.ndarray, *, span: int, buckets: int) -> np.ndarray:
    """The rows of the relative table for distances i - j of a query i from a key j.

    Without buckets, row delta(i, j) of He et al. 2020, equation 3: the distance + k, clamped to
    [0, 2k - 1]. With buckets, distances beyond half of them share rows, the more the longer they
    are, up to `span` (DeBERTa's code from version 2 on).

    Args:
        span: k, the longest distance with a row of its own.
        buckets: 0, or half the number of rows of a logarithmic scale.
    """
    distances = np.asarray(distances)
    if not buckets:
        return np.clip(distances + span, 0, 2 * span - 1)
    middle = buckets // 2
    lengths = np.abs(distances)
    # In float32 as in the code: where a logarithm is a whole number, rounding chooses the bucket.
    ratio = np.maximum(lengths, middle).astype(np.float32) / np.float32(middle)
    scale = np.log(np.float32((span - 1) / middle))
    far = np.ceil(np.log(ratio) / scale * np.float32(middle - 1)) + middle
    bucket = np.where(lengths <= middle, distances, far * np.sign(distances))
    return np.clip(bucket.astype(int) + buckets, 0, 2 * buckets - 1)


class DisentangledAttention(Attention):
    """Self-attention with scores of content and position (He et al. 2020, section 3.1, equation 4).

    With q, k of the tokens and q^r, k^r of row d of a table of relative positions, the score before
    scaling is the sum of the terms

        q_i k_j + q_i k^r_d + k_j q^r_d,     d = delta(i, j).

    In the last term, position to content ("p2c"), the paper has delta(j, i), and the released code
    delta(i, j); this is the code's, with which the weights were trained. There is no array of T x S
    vectors: both position terms are products with the T + S - 1 rows of the distances that occur,
    shifted into place.

    The table, [R, D], is `Shared.extra`: see `RelativeTable`.

    Attributes:
        terms: the position terms, out of "c2p" and "p2c". `scale` should be
            (K * (1 + len(terms)))^-0.5.
        make_rows: distances -> rows of the table.
        share_projections: k^r and q^r are made by the kernels of k and q.
        use_bias: may also name `position_key` and `position_query`, the projections of the table.
    """

    terms: tuple[str, ...] = dataclasses.field(kw_only=True)
    make_rows: Callable[[np.ndarray], np.ndarray] = dataclasses.field(kw_only=True)
    share_projections: bool = False

    def setup(self) -> None:
        super().setup()
        if self.share_projections:
            return
        if "c2p" in self.terms:
            self.position_key = self._into_heads(
                "position_key", self.heads, "heads", self.kernel_init
            )
        if "p2c" in self.terms:
            self.position_query = self._into_heads(
                "position_query", self.heads, "heads", self.kernel_init
            )

    def prepare_scores(
        self,
        query: Float[Array, "B T H K"],
        keys_values: KeyValues,
        bias: Float[Array, "B H T S"] | None,
        *,
        mask: AttentionMask,
        extra: PyTree,
    ) -> tuple[Float[Array, "B T H K"], Float[Array, "B H T S"] | None]:
        """The query, and the scaled position terms plus `bias`."""
        del mask
        key, _ = keys_values.by_position()
        targets, sources = query.shape[1], key.shape[1]
        rows = self.make_rows(np.arange(targets - 1, -sources, -1))
        parts = [] if bias is None else [bias]
        if "c2p" in self.terms:
            table = (self.key if self.share_projections else self.position_key)(extra)
            parts.append(self._scores(query, table[rows], keys=sources))
        if "p2c" in self.terms:
            # Seen from a key, the distances of the queries run the other way.
            table = (self.query if self.share_projections else self.position_query)(extra)
            scores = self._scores(key, table[rows[::-1]], keys=targets)
            parts.append(jnp.swapaxes(scores, 2, 3))
        return query, sum(parts[1:], start=parts[0]) if parts else None

    def _scores(
        self, x: Float[Array, "B T H K"], table: Float[Array, "R H K"], *, keys: int
    ) -> Float[Array, "B H T S"]:
        scores = product("BTHK,RHK->BHTR", x * self.scale_factor, table)
        return align_distances(scores, keys=keys)


class RelativeTable(nn.Module):
    """The table of relative positions, which all layers share, for `Shared.extra`.

    Attributes:
        rows: R.
        make_norm: factory of a norm of the rows, or None.
        dropout: rate for the table's entries; in the authors' code each layer has its own mask,
            here all have the same.
    """

    rows: int
    features: int
    embedding_init: Initializer
    make_norm: Callable[..., nn.Module] | None = None
    dropout: float = 0.0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, shared: Shared) -> Float[Array, "R D"]:
        """The table, in `dtype`."""
        init = nn.with_logical_partitioning(self.embedding_init, ("positions", "embed"))
        x = self.param("embedding", init, (self.rows, self.features)).astype(self.dtype)
        if self.make_norm is not None:
            x = self.make_norm(name="norm")(x)
        return nn.Dropout(self.dropout)(x, shared.deterministic)
