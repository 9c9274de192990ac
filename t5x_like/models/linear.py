"""The linear layer under every projection."""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float

from t5x_like.models.compute import Compute
from t5x_like.models.matrix_product import product_with_transposed

Initializer = Callable[..., Array]

# The variable collection of kernels as matrices [outputs, inputs], which replace the parameters
# when decoding on a CPU (decoding/transposed_kernels.py).
TRANSPOSED = "transposed"


def keep_whole(x: Float[Array, "B ... D"]) -> Any:
    """Replicate the last axis of x on every device.

    Needed between a kernel whose output D is sharded over `model` and a kernel whose input D is
    sharded over `fsdp`: without this constraint XLA's partitioner (jax 0.10.2, a mesh with `data`,
    `fsdp` and `model` above 1) computes wrong gradients.
    """
    between = [None] * (x.ndim - 2)
    return nn.with_logical_constraint(x, ("activation_batch", *between, "activation_embed"))


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
        # Multiply as matrices, so that the gradients are matrix products too: with more axes XLA
        # first transposes an operand, on a CPU element by element.
        y = x.astype(self.compute.dtype).reshape(math.prod(rows), math.prod(inputs))
        if self.has_variable(TRANSPOSED, "kernel"):
            kernel = self.get_variable(TRANSPOSED, "kernel")
            y = product_with_transposed(y, kernel.astype(self.compute.dtype))
        else:
            y = self.compute.product(y, self._matrix(inputs))
        y = y.reshape(*rows, *self.features)
        if self.use_bias:
            init = nn.with_logical_partitioning(self.bias_init, self.axes[self.contract :])
            y = y + self.param("bias", init, self.features).astype(self.compute.dtype)
        return y

    def _matrix(self, inputs: tuple[int, ...]) -> Float[Array, "n m"]:
        """Return the kernel as a matrix [inputs, outputs] in `compute.dtype`."""

        def init(key: Array, shape: tuple[int, ...]) -> Array:
            matrix = (math.prod(inputs), math.prod(self.features))
            return self.kernel_init(key, matrix).reshape(shape)

        init = nn.with_logical_partitioning(init, self.axes)
        kernel = self.param("kernel", init, (*inputs, *self.features))
        kernel = kernel.astype(self.compute.dtype)
        return kernel.reshape(math.prod(inputs), math.prod(self.features))
