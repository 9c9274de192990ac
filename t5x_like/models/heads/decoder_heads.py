"""Heads of a decoder for labelled text: a class, or one of several answers."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t5x_like.models.linear import Initializer, Linear


class ClassHead(nn.Module):
    """Predict a class from the sum of the states of an example's rows (two texts: both orders)."""

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
        return _output(self.labels, self.kernel_init)(state)


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
        return jnp.where(real, _output(1, self.kernel_init)(states)[..., 0], -1e9)


def _output(outputs: int, kernel_init: Initializer) -> nn.Module:
    # In float32: a few numbers, which cost nothing.
    return Linear(
        (outputs,),
        axes=("embed", "classes"),
        use_bias=True,
        kernel_init=kernel_init,
        name="classifier",
    )
