"""Heads of a decoder for labelled text: a class or a number, or one of several answers."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t5x_like.models.heads.output_layer import output_layer
from t5x_like.models.linear import Initializer


class ClassHead(nn.Module):
    """Predict a class from the sum of the states of an example's rows (two texts: both orders).

    Attributes:
        labels: the number of classes; 1 where the logit is a number to predict.
    """

    labels: int
    kernel_init: Initializer
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, states: Float[Array, "B C D"], real: Bool[Array, "B C"], *, deterministic: bool = True
    ) -> Float[Array, "B labels"]:
        """Float32 logits."""
        state = jnp.sum(jnp.where(real[..., None], states, 0.0), axis=1)
        state = nn.Dropout(self.dropout)(state, deterministic)
        return output_layer(self.labels, self.kernel_init, "classifier")(state)


class ChoiceHead(nn.Module):
    """Multiple choice: one logit for each row of an example; padding rows get -1e9."""

    kernel_init: Initializer
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, states: Float[Array, "B C D"], real: Bool[Array, "B C"], *, deterministic: bool = True
    ) -> Float[Array, "B C"]:
        """Float32 logits."""
        # One mask for all rows of an example, since their logits are compared.
        states = nn.Dropout(self.dropout, broadcast_dims=(1,))(states, deterministic)
        logits = output_layer(1, self.kernel_init, "classifier")(states)[..., 0]
        return jnp.where(real, logits, -1e9)
