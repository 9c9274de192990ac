"""The position-wise feed-forward layers."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.models.dropout import make_dropout
from t5x_like.models.linear import Initializer, Linear
from t5x_like.models.quantized_product import Product
from t5x_like.models.types import Activation

HIDDEN_AXES = ("activation_batch", "activation_length", "activation_mlp")


def elementwise(f: Callable[..., Array]) -> Callable[..., Array]:
    """Return `f`, of which the backward pass computes again what it needs from the arguments.

    Layers in a loop otherwise keep each step of a GELU, five arrays [B, L, F] a layer. Where layers
    are not in a loop, the compiler chooses: it sees both computations.
    """
    return jax.checkpoint(f, prevent_cse=False)


def gated(activation: Activation) -> Callable[[Array, Array], Array]:
    """Return the `elementwise` function f(x, y) = activation(x) * y."""
    return elementwise(lambda x, linear: activation(x) * linear)


class MLP(nn.Module):
    """wo(activation(wi(x))): Vaswani et al. 2017, equation 2; T5 has it without biases.

    Attributes:
        hidden: F.
        dropout, dropout_broadcast: of the hidden layer, see models/dropout.py.
        wi_init, wo_init: initializers of the kernels [D, F] and [F, D].
        product: as in `Linear`.
    """

    hidden: int
    activation: Callable[[Array], Array] = nn.relu
    dropout: float = 0.0
    dropout_broadcast: bool = False
    use_bias: bool = False
    wi_init: Initializer = nn.initializers.lecun_normal()
    wo_init: Initializer = nn.initializers.lecun_normal()
    product: Product = jnp.matmul
    dtype: Any = jnp.float32

    def _into_hidden(self, x: Float[Array, "B L D"], name: str) -> Float[Array, "B L F"]:
        return Linear(
            (self.hidden,),
            axes=("embed", "mlp"),
            use_bias=self.use_bias,
            kernel_init=self.wi_init,
            product=self.product,
            dtype=self.dtype,
            name=name,
        )(x)

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        *,
        tokens: Int[Array, "B L"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "B L D"]:
        """The layer's output, without residual or norm; `tokens` are ignored."""
        hidden = nn.with_logical_constraint(self.expand(x), HIDDEN_AXES)
        drop = make_dropout(self.dropout, broadcast=self.dropout_broadcast)
        hidden = drop(hidden, deterministic)
        return Linear(
            (x.shape[-1],),
            axes=("mlp", "embed"),
            use_bias=self.use_bias,
            kernel_init=self.wo_init,
            product=self.product,
            dtype=self.dtype,
            name="wo",
        )(hidden)

    def expand(self, x: Float[Array, "B L D"]) -> Float[Array, "B L F"]:
        """The hidden layer."""
        return elementwise(self.activation)(self._into_hidden(x, "wi"))


class GLU(MLP):
    """wo(activation(wi_0(x)) * wi_1(x)): Shazeer 2020, section 2 (GEGLU with GELU)."""

    activation: Callable[[Array], Array] = nn.gelu

    def expand(self, x: Float[Array, "B L D"]) -> Float[Array, "B L F"]:
        """The gated hidden layer."""
        return gated(self.activation)(self._into_hidden(x, "wi_0"), self._into_hidden(x, "wi_1"))
