"""The relative shift: scores by distance are aligned with the keys at these distances."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def align_distances(scores: Float[Array, "B H T R"], *, keys: int) -> Float[Array, "B H T S"]:
    """Shift row t by T - 1 - t columns to the left (Dai et al. 2019, appendix B).

    A query in slot t has the distance t - s from the key in slot s. The R columns of `scores` are
    the distances T - 1, T - 2, ...; column s of row t of the result is the score of the distance
    t - s. R = T + S - 1 columns suffice for all keys. R = S suffices under a causal mask; the
    columns of keys after the query then contain scores of another row.

    Args:
        keys: S.
    """
    batch, heads, targets, distances = scores.shape
    # Pad a column on the left, flatten, skip T numbers and cut rows of R again: this shifts each
    # row by one column less than the row before.
    scores = jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (1, 0)))
    scores = scores.reshape(batch, heads, targets * (distances + 1))[..., targets:]
    return scores.reshape(batch, heads, targets, distances)[..., :keys]
