"""The mix of a bidirectional language model's layers that a task learns."""

import functools
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.names import choose

# Of the vectors of the words and the outputs of the layers after them.
LAYERS: Mapping[str, slice] = {
    "all": slice(None),
    "words": slice(0, 1),
    "first": slice(1, 2),
    "last": slice(-1, None),
}


class LayerMix(nn.Module):
    """gamma * sum_j softmax(weights)_j h_j: Peters et al. 2018, equation 1.

    The weights start at 0 and gamma at 1. One layer alone has gamma, too, and a weight of 1.

    Attributes:
        kind: one of LAYERS.
        norm: bring the numbers of each h_j to mean 0 and variance 1 first, over the features of a
            word. (The paper names layer normalization; the authors' code takes the mean and
            the variance of all words of a batch, so that a word depends on its batch.)
        dropout: rate after the sum.
    """

    kind: str = "all"
    norm: bool = False
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, states: Float[Array, "N+1 B L D"], *, deterministic: bool = True
    ) -> Float[Array, "B L D"]:
        """The mix."""
        chosen = states[LAYERS[self.kind]]
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("layers",))
        weights = jax.nn.softmax(self.param("weights", zeros, (len(chosen),)))
        gamma = self.param("gamma", nn.initializers.ones, ())
        if self.norm:
            chosen = jax.nn.standardize(chosen.astype(jnp.float32), axis=-1, epsilon=1e-12)
        mixed = gamma * jnp.einsum("n,nbld->bld", weights, chosen)
        return nn.Dropout(self.dropout)(mixed.astype(states.dtype), deterministic)


def select_mix(kind: str, *, norm: bool, dropout: float) -> Callable[..., nn.Module]:
    """The factory of a `LayerMix`.

    Raises:
        ValueError: there is no such kind.
    """
    choose("model.mix", kind, LAYERS)
    return functools.partial(LayerMix, kind=kind, norm=norm, dropout=dropout)
