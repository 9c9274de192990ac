"""Linear layers, position-wise feed-forward layers and layer norms.

Norms have gradients of their own; every parameter names its logical axes.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from t5x_like import partitioning
from t5x_like.nn.compute import Activation, Compute, make_dropout
from t5x_like.nn.matrix_product import product_with_transposed

Initializer = Callable[..., Array]


def symmetric(limit: float) -> Initializer:
    """Return an initializer that samples uniformly between -limit and limit."""
    return lambda key, shape: jax.random.uniform(key, shape, minval=-limit, maxval=limit)


# The variable collection of kernels as matrices [outputs, inputs], which replace the parameters
# when decoding on a CPU (decoding/transposed_kernels.py).
TRANSPOSED = "transposed"

# The checkpoint names of the results of a feed-forward layer's products, for `Compute.remat`.
WI, WO = "wi", "wo"

# The parameters beside a kernel W with which the layer computes x W + (x A) B (nn/lora.py).
LORA_A, LORA_B = "lora_a", "lora_b"


def replicate_last_axis(x: Float[Array, "B ... D"]) -> Any:
    """Replicate the last axis of x on every device.

    Needed between a kernel whose output D is sharded over `model` and a kernel whose input D is
    sharded over `fsdp`: without this constraint XLA's partitioner (jax 0.10.2, a mesh with `data`,
    `fsdp` and `model` above 1) computes wrong gradients.
    """
    between = [None] * (x.ndim - 2)
    return partitioning.constrain(x, ("activation_batch", *between, "activation_embed"))


class Linear(nn.Module):
    """Map the last axes of the input to `features`: D -> (H, K), (H, K) -> D, D -> F.

    Attributes:
        features: sizes of the new axes.
        axes: logical names of the kernel's axes, inputs first.
        contract: the number of input axes that are summed over.
        kernel_init: initializer, called with a matrix shape [inputs, outputs], so that its fan-in
            and fan-out are right.
    """

    features: tuple[int, ...]
    axes: tuple[str, ...]
    contract: int = 1
    use_bias: bool = False
    kernel_init: Initializer = nn.initializers.lecun_normal()
    bias_init: Initializer = nn.initializers.zeros
    compute: Compute = Compute()

    @nn.compact
    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the product, in `compute.dtype`."""
        rows, inputs = x.shape[: x.ndim - self.contract], x.shape[x.ndim - self.contract :]
        x = x.astype(self.compute.dtype)
        if self._keeps_axes():
            y = jnp.tensordot(x, self._kernel(inputs), self.contract)
            return y + self._bias() if self.use_bias else y
        # Multiply as matrices, so that the gradients are matrix products too: with more axes XLA
        # first transposes an operand, on a CPU element by element.
        x = x.reshape(math.prod(rows), math.prod(inputs))
        if self.has_variable(TRANSPOSED, "kernel"):
            kernel = self.get_variable(TRANSPOSED, "kernel")
            y = product_with_transposed(x, kernel.astype(self.compute.dtype))
        else:
            kernel = self._kernel(inputs)
            y = self.compute.product(x, kernel.reshape(x.shape[-1], math.prod(self.features)))
        if self.has_variable("params", LORA_A):
            a, b = (self.get_variable("params", name).astype(x.dtype) for name in (LORA_A, LORA_B))
            y = y + (x @ a.reshape(x.shape[-1], -1)) @ b.reshape(-1, y.shape[-1])
        if self.use_bias:  # before the reshape: cuBLAS then adds it as part of the product
            y = y + self._bias().reshape(-1)
        return y.reshape(*rows, *self.features)

    def _keeps_axes(self) -> bool:
        """Return whether to multiply by the kernel as it is stored, with its own axes.

        On TPUs: between reshapes XLA splits the exchange of a kernel that is sharded over `fsdp`
        into more loops, and sends and copies more (docs/plans.md).
        """
        plain = self.compute.product is jnp.matmul and not self.has_variable("params", LORA_A)
        return plain and partitioning.platform() == "tpu"

    def _kernel(self, inputs: tuple[int, ...]) -> Float[Array, "..."]:
        """Return the kernel [*inputs, *features] in `compute.dtype`."""

        def init(key: Array, shape: tuple[int, ...]) -> Array:
            matrix = (math.prod(inputs), math.prod(self.features))
            return self.kernel_init(key, matrix).reshape(shape)

        init = nn.with_logical_partitioning(init, self.axes)
        return self.param("kernel", init, (*inputs, *self.features)).astype(self.compute.dtype)

    def _bias(self) -> Float[Array, "..."]:
        init = nn.with_logical_partitioning(self.bias_init, self.axes[self.contract :])
        return self.param("bias", init, self.features).astype(self.compute.dtype)


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
        hidden = Linear(
            (self.hidden,),
            axes=("embed", "mlp"),
            use_bias=self.use_bias,
            kernel_init=self.wi_init,
            compute=self.compute,
            name=name,
        )(x)
        return checkpoint_name(hidden, WI)

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        *,
        tokens: Int[Array, "B L"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "B L D"]:
        """Return the layer's output, without residual or norm; `tokens` are ignored."""
        hidden = partitioning.constrain(self.expand(x), HIDDEN_AXES)
        if self.drop_hidden:
            hidden = make_dropout(self.compute)(hidden, deterministic)
        out = Linear(
            (x.shape[-1],),
            axes=("mlp", "embed"),
            use_bias=self.use_bias,
            kernel_init=self.wo_init,
            compute=self.compute,
            name="wo",
        )(hidden)
        return checkpoint_name(out, WO)

    def expand(self, x: Float[Array, "B L D"]) -> Float[Array, "B L F"]:
        """Return the hidden layer."""
        return elementwise(self.activation)(self._into_hidden(x, "wi"))


class GLU(MLP):
    """wo(activation(wi_0(x)) * wi_1(x)): Shazeer 2020, section 2 (GEGLU with GELU)."""

    activation: Callable[[Array], Array] = nn.gelu

    def expand(self, x: Float[Array, "B L D"]) -> Float[Array, "B L F"]:
        """Return the gated hidden layer."""
        return gated(self.activation)(self._into_hidden(x, "wi_0"), self._into_hidden(x, "wi_1"))


# A gain is one vector per layer: sharding it saves nothing and costs a gather, so its axis has a
# separate name, which the sharding rules keep replicated.
_ONES = nn.with_logical_partitioning(nn.initializers.ones, ("norm",))
_ZEROS = nn.with_logical_partitioning(nn.initializers.zeros, ("norm",))


class RMSNorm(nn.Module):
    """x / RMS(x) times a gain (Zhang & Sennrich 2019, equation 4).

    Attributes:
        epsilon: added to the mean square.
        compute: its `dtype` is the dtype of the output; the arithmetic is float32.
    """

    epsilon: float = 1e-6
    compute: Compute = Compute()

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """Return the normalized states."""
        gain = self.param("scale", _ONES, x.shape[-1:])
        return normalize(x, gain, epsilon=self.epsilon).astype(self.compute.dtype)


class LayerNorm(nn.Module):
    """(x - mean) / deviation, times a gain, plus a bias (Ba et al. 2016, equation 4).

    Attributes:
        epsilon: added to the variance.
        use_bias: whether a bias is added.
        compute: its `dtype` is the dtype of the output; the arithmetic is float32.
    """

    epsilon: float = 1e-6
    use_bias: bool = True
    compute: Compute = Compute()

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """Return the normalized states."""
        gain = self.param("scale", _ONES, x.shape[-1:])
        y = normalize(x, gain, epsilon=self.epsilon, subtract_mean=True)
        if self.use_bias:
            y += self.param("bias", _ZEROS, x.shape[-1:]).astype(y.dtype)
        return y.astype(self.compute.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def normalize(
    x: Float[Array, "... D"],
    gain: Float[Array, " D"],
    epsilon: float,
    subtract_mean: bool = False,
) -> Float[Array, "... D"]:
    """Normalize every vector of `x`, in float32.

    With m the mean of x over D if `subtract_mean`, and otherwise 0,

        y = (x - m) r gain,   r = 1 / sqrt(mean((x - m)^2) + epsilon).

    The gradient is written out, because on a CPU XLA recomputes parts of the automatic gradient at
    every use, and materializes the gain for every token.
    """
    return _forward(x, gain, epsilon, subtract_mean)[0]


def _forward(x, gain, epsilon, subtract_mean):
    mean = _mean(x.astype(jnp.float32)) if subtract_mean else None
    centered = _centered(x, mean)
    # Two passes: E[x^2] - E[x]^2 loses half of float32's digits if the mean is large compared with
    # the deviation, as in the embeddings of published models.
    root = jax.lax.rsqrt(_mean(jnp.square(centered)) + epsilon)
    return centered * (root * gain.astype(jnp.float32)), (x, mean, root, gain)


def _backward(epsilon, subtract_mean, residuals, by_y):
    """Compute dL/dx = r (g - mean(g) - n mean(g n)), with n = (x - m) r and g = dL/dy gain."""
    del epsilon
    x, mean, root, gain = residuals
    normal = _centered(x, mean) * root
    by_normal = by_y * gain.astype(jnp.float32)
    by_x = by_normal - normal * _mean(by_normal * normal)
    if subtract_mean:
        by_x -= _mean(by_normal)
    by_gain = jnp.sum(by_y * normal, axis=tuple(range(x.ndim - 1)))
    return (by_x * root).astype(x.dtype), by_gain.astype(gain.dtype)


normalize.defvjp(_forward, _backward)


def _centered(x: Array, mean: Array | None) -> Array:
    x = x.astype(jnp.float32)
    return x if mean is None else x - mean


def _mean(x: Array) -> Array:
    return jnp.mean(x, axis=-1, keepdims=True)
