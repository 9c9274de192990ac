"""The layers of an encoder that a head reads: one, several concatenated, or a weighted sum."""

import functools
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.names import choose

LAST = "last"
_FOUR = slice(-4, None)
# Of the states before the first layer and after each, in the order of Devlin et al. 2018, table 7.
LAYERS: Mapping[str, slice] = {
    "embeddings": slice(0, 1),
    "second_to_last": slice(-2, -1),
    LAST: slice(-1, None),
    "weighted_last_4": _FOUR,
    "concatenated_last_4": _FOUR,
    "weighted_all": slice(1, None),
}


class LayerFeatures(nn.Module):
    """The features that Devlin et al. 2018 take from a frozen BERT (section 5.3, table 7).

    A weighted sum has a learned weight for each layer, in a softmax, and a learned scale, as in
    Peters et al. 2018 (equation 1); the paper does not define its own.

    Attributes:
        kind: one of LAYERS.
    """

    kind: str

    @nn.compact
    def __call__(self, states: Float[Array, "N+1 B L D"]) -> Float[Array, "B L F"]:
        """The features; concatenated layers have F = 4 D, all others D.

        Raises:
            ValueError: fewer layers than are read.
        """
        chosen = states[LAYERS[self.kind]]
        if "last_4" in self.kind and len(states) < 5:
            raise ValueError(
                f"model.layer_features={self.kind!r} reads 4 layers, and the model has "
                f"{len(states) - 1}"
            )
        if self.kind.startswith("weighted"):
            zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("layers",))
            weights = jax.nn.softmax(self.param("weights", zeros, (len(chosen),)))
            scale = self.param("scale", nn.initializers.ones, ())
            return (scale * jnp.einsum("n,nbld->bld", weights, chosen)).astype(states.dtype)
        return jnp.concatenate(list(chosen), axis=-1)


def select_features(kind: str) -> Callable[..., nn.Module] | None:
    """The factory of `LayerFeatures` that `model.layer_features` names, None for the last layer.

    Raises:
        ValueError: there is no such kind.
    """
    choose("model.layer_features", kind, LAYERS)
    return None if kind == LAST else functools.partial(LayerFeatures, kind=kind)
