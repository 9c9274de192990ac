"""Heads of a decoder for labelled text: a class, or one of several answers."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t5x_like.models.linear import Initializer, Linear


class ClassHead(nn.Module):
    """A class, from the sum of what an example's rows say: of two texts, in both orders."""

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
    """Which of an example's rows is right: a number for each; a row of padding has no chance."""

    kernel_init: Initializer
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, states: Float[Array, "B C D"], real: Bool[Array, "B C"], *, deterministic: bool = True
    ) -> Float[Array, "B C"]:
        """Float32 logits."""
        # The same for all rows of an example: they compete.
        states = nn.Dropout(self.dropout, broadcast_dims=(1,))(states, deterministic)
        return jnp.where(real, _output(1, self.kernel_init)(states)[..., 0], -1e9)


def _output(outputs: int, kernel_init: Initializer) -> nn.Module:
    # Float32: a class is decided by a few numbers, which cost nothing.
    return Linear(
        (outputs,),
        axes=("embed", "classes"),
        use_bias=True,
        kernel_init=kernel_init,
        name="classifier",
    )
