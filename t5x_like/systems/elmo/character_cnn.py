"""Word vectors from characters: convolutions, max-pooling over positions, highway layers."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.nn.compute import Compute
from t5x_like.nn.linear import Linear, replicate_last_axis, symmetric

CHARACTERS = 262  # 256 bytes, five special characters, and 0 for padding


class Convolution(nn.Module):
    """Filters over `width` characters, max-pooled over all positions of the word."""

    width: int
    filters: int
    compute: Compute = Compute()

    @nn.compact
    def __call__(self, x: Float[Array, "N K E"]) -> Float[Array, "N F"]:
        """Return the maxima, with a bias and a ReLU."""
        init = nn.with_logical_partitioning(symmetric(0.05), ("positions", "kv", "filters"))
        kernel = self.param("kernel", init, (self.width, x.shape[-1], self.filters))
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("filters",))
        bias = self.param("bias", zeros, (self.filters,))
        # One matrix product, so that the gradients are matrix products too.
        count = x.shape[1] - self.width + 1
        windows = jnp.concatenate([x[:, n : n + count] for n in range(self.width)], axis=-1)
        y = windows @ kernel.reshape(-1, self.filters).astype(self.compute.dtype)
        return nn.relu(jnp.max(y, axis=1) + bias.astype(self.compute.dtype))


class Highway(nn.Module):
    """T * relu(W x + b) + (1 - T) * x, T = sigmoid(W_T x + b_T): Srivastava et al. 2015.

    b_T is initialized with -2, so that x passes through almost unchanged at first.
    """

    compute: Compute = Compute()

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        """Return the gated sum."""

        def layer(name: str, bias: float) -> Array:
            linear = Linear(
                (x.shape[-1],),
                axes=("embed", "mlp"),
                use_bias=True,
                kernel_init=nn.initializers.normal(x.shape[-1] ** -0.5),
                bias_init=nn.initializers.constant(bias),
                compute=self.compute,
                name=name,
            )
            return replicate_last_axis(linear(x))

        gate = nn.sigmoid(layer("gate", -2.0))
        return gate * nn.relu(layer("transform", 0.0)) + (1 - gate) * x


class CharacterCNN(nn.Module):
    """A map from words of K characters to vectors of width D: Peters et al. 2018, section 3.4.

    Convolutions of several widths slide over the characters and are max-pooled over all positions;
    highway layers and a projection follow (Kim et al. 2016). Character 0 is padding, and its vector
    is 0. A word whose characters are all 0 is padding, too.

    Attributes:
        filters: (width in characters, number of filters) of each convolution.
        highways: the number of highway layers.
        features: D.
        character_features: the width of the character vectors.
    """

    filters: tuple[tuple[int, int], ...]
    highways: int
    features: int
    character_features: int = 16
    compute: Compute = Compute()

    @nn.compact
    def __call__(self, characters: Int[Array, "B L K"]) -> Float[Array, "B L D"]:
        """Return the vectors of the words."""
        init = nn.with_logical_partitioning(symmetric(1.0), ("characters", "kv"))
        table = self.param("embedding", init, (CHARACTERS, self.character_features))
        rows, words, _ = characters.shape
        ids = characters.reshape(rows * words, -1)
        x = jnp.where(ids[..., None] > 0, jnp.take(table, ids, axis=0), 0)
        x = x.astype(self.compute.dtype)
        maxima = [
            Convolution(width, filters, compute=self.compute, name=f"convolution_{number}")(x)
            for number, (width, filters) in enumerate(self.filters)
        ]
        y = jnp.concatenate(maxima, axis=-1).reshape(rows, words, -1)
        for number in range(self.highways):
            y = Highway(compute=self.compute, name=f"highway_{number}")(y)
        return replicate_last_axis(
            Linear(
                (self.features,),
                axes=("embed", "mlp"),
                use_bias=True,
                kernel_init=nn.initializers.normal(y.shape[-1] ** -0.5),
                compute=self.compute,
                name="projection",
            )(y)
        )
