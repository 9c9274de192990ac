"""A broadcast whose gradient, a sum over the broadcast axes, is also fast on CPUs."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like import partitioning


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def broadcast_to(x: Float[Array, "..."], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Broadcast an array with the rank of `shape`; the gradient is computed by `sum_to`."""
    return jnp.broadcast_to(x, shape)


def _forward(x, shape):
    return jnp.broadcast_to(x, shape), x.shape


def _backward(shape, kept, gradient):
    del shape
    return (sum_to(gradient, kept),)


broadcast_to.defvjp(_forward, _backward)


def sum_to(x: Float[Array, "..."], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Sum over the axes of `x` that have size 1 in `shape`.

    On a CPU the sum over the first axis is a product with ones, since XLA's sum over the first axis
    of an array of scores takes ten times as long.
    """
    axes = [n for n, (size, wanted) in enumerate(zip(x.shape, shape, strict=True)) if size > wanted]
    if axes[:1] == [0] and partitioning.platform() == "cpu":
        x = jnp.tensordot(jnp.ones((1, len(x)), x.dtype), x, 1)
        axes = axes[1:]
    return jnp.sum(x, axis=axes, keepdims=True) if axes else x
