"""Position-wise feed-forward layers."""

from collections.abc import Callable

import flax.linen as nn
import jax
from jaxtyping import Array, Float, Int

from t5x_like.models.compute import Compute, make_dropout
from t5x_like.models.linear import Initializer, Linear
from t5x_like.models.types import Activation

HIDDEN_AXES = ("activation_batch", "activation_length", "activation_mlp")


def elementwise(f: Callable[..., Array]) -> Callable[..., Array]:
    """Rematerialize `f`: only its arguments are saved for the backward pass.

    Scanned layers otherwise save each step of a GELU, five arrays [B, L, F] per layer. In unrolled
    layers the compiler sees both computations and chooses whether to merge them.
    """
    return jax.checkpoint(f, prevent_cse=False)


def gated(activation: Activation) -> Callable[[Array, Array], Array]:
    """Return the `elementwise` function f(x, y) = activation(x) * y."""
    return elementwise(lambda x, linear: activation(x) * linear)


class MLP(nn.Module):
    """wo(activation(wi(x))): Vaswani et al. 2017, equation 2; without biases in T5.

    Attributes:
        hidden: F.
        drop_hidden: whether dropout also applies to the hidden layer.
        wi_init, wo_init: initializers of the kernels [D, F] and [F, D].
    """

    hidden: int
    activation: Callable[[Array], Array] = nn.relu
    drop_hidden: bool = False
    use_bias: bool = False
    wi_init: Initializer = nn.initializers.lecun_normal()
    wo_init: Initializer = nn.initializers.lecun_normal()
    compute: Compute = Compute()

    def _into_hidden(self, x: Float[Array, "B L D"], name: str) -> Float[Array, "B L F"]:
        return Linear(
            (self.hidden,),
            axes=("embed", "mlp"),
            use_bias=self.use_bias,
            kernel_init=self.wi_init,
            compute=self.compute,
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
        """Return the layer's output, without residual or norm; `tokens` are ignored."""
        hidden = nn.with_logical_constraint(self.expand(x), HIDDEN_AXES)
        if self.drop_hidden:
            hidden = make_dropout(self.compute)(hidden, deterministic)
        return Linear(
            (x.shape[-1],),
            axes=("mlp", "embed"),
            use_bias=self.use_bias,
            kernel_init=self.wo_init,
            compute=self.compute,
            name="wo",
        )(hidden)

    def expand(self, x: Float[Array, "B L D"]) -> Float[Array, "B L F"]:
        """Return the hidden layer."""
        return elementwise(self.activation)(self._into_hidden(x, "wi"))


class GLU(MLP):
    """wo(activation(wi_0(x)) * wi_1(x)): Shazeer 2020, section 2 (GEGLU with GELU)."""

    activation: Callable[[Array], Array] = nn.gelu

    def expand(self, x: Float[Array, "B L D"]) -> Float[Array, "B L F"]:
        """Return the gated hidden layer."""
        return gated(self.activation)(self._into_hidden(x, "wi_0"), self._into_hidden(x, "wi_1"))
