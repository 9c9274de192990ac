"""Scores by distance, aligned with the keys that are at those distances."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def align_distances(scores: Float[Array, "B H T R"], *, keys: int) -> Float[Array, "B H T S"]:
    """Shift row t by T - 1 - t places to the left (Dai et al. 2019, appendix B).

    A query in slot t has the distance t - s from the key in slot s. Where the R columns of `scores`
    are the distances T - 1, T - 2, ... of a query, column s of row t of the result is the score of
    the distance t - s. With R = T + S - 1 all S columns have one. With R = S, enough under a causal
    mask, the columns of keys after the query get scores of another row.

    Args:
        keys: S.
    """
    batch, heads, targets, distances = scores.shape
    # Pad a column, and split the rows again T places on: each row is one place shorter.
    scores = jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (1, 0)))
    scores = scores.reshape(batch, heads, targets * (distances + 1))[..., targets:]
    return scores.reshape(batch, heads, targets, distances)[..., :keys]
