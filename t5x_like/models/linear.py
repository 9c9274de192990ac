"""The linear map under every projection."""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

Initializer = Callable[..., Array]


def keep_whole(x: Float[Array, "B ... D"]) -> Any:
    """The same, with its last axis uncut on every device.

    For the output of a kernel that is cut over `model` along D, where the next kernel's D is cut
    over `fsdp`: unless told, XLA's partitioner (of jax 0.10.2, on a mesh with `data`, `fsdp` and
    `model` above 1) makes a backward pass of such a pair that is wrong.
    """
    between = [None] * (x.ndim - 2)
    return nn.with_logical_constraint(x, ("activation_batch", *between, "activation_embed"))


class Linear(nn.Module):
    """Maps the last axes of its input to `features`: D -> (H, K), (H, K) -> D, D -> F.

    Attributes:
        features: sizes of the new axes.
        axes: logical names of the kernel's axes, inputs first.
        contract: how many input axes are summed over.
        kernel_init: called with the matrix shape [inputs, outputs], so that fans are right.
    """

    features: tuple[int, ...]
    axes: tuple[str, ...]
    contract: int = 1
    use_bias: bool = False
    kernel_init: Initializer = nn.initializers.lecun_normal()
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """The product, in `dtype`."""
        inputs = x.shape[x.ndim - self.contract :]

        def init(key: Array, shape: tuple[int, ...]) -> Array:
            matrix = (math.prod(inputs), math.prod(self.features))
            return self.kernel_init(key, matrix).reshape(shape)

        init = nn.with_logical_partitioning(init, self.axes)
        kernel = self.param("kernel", init, (*inputs, *self.features))
        # As a product of matrices, which is also what its gradients are then: of more axes XLA
        # transposes one operand first, on a CPU one number at a time.
        rows = x.shape[: x.ndim - self.contract]
        matrix = kernel.astype(self.dtype).reshape(math.prod(inputs), math.prod(self.features))
        y = x.astype(self.dtype).reshape(math.prod(rows), math.prod(inputs)) @ matrix
        y = y.reshape(*rows, *self.features)
        if self.use_bias:
            zeros = nn.with_logical_partitioning(nn.initializers.zeros, self.axes[self.contract :])
            y = y + self.param("bias", zeros, self.features).astype(self.dtype)
        return y
