"""A broadcast whose gradient, the sum over its axes, is fast on CPUs too."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like import partitioning


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def broadcast_to(x: Float[Array, "..."], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """`jnp.broadcast_to` of an array that has all axes of `shape`, whose gradient is `sum_to`'s."""
    return jnp.broadcast_to(x, shape)


def _forward(x, shape):
    return jnp.broadcast_to(x, shape), x.shape


def _backward(shape, kept, gradient):
    del shape
    return (sum_to(gradient, kept),)


broadcast_to.defvjp(_forward, _backward)


def sum_to(x: Float[Array, "..."], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """The sum over the axes of `x` that are 1 in `shape`.

    Over the first axis it is a product with ones on a CPU, where XLA takes ten times as long for
    the sum over the first axis of an array of scores.
    """
    axes = [n for n, (size, wanted) in enumerate(zip(x.shape, shape, strict=True)) if size > wanted]
    if axes[:1] == [0] and partitioning.platform() == "cpu":
        x = jnp.tensordot(jnp.ones((1, len(x)), x.dtype), x, 1)
        axes = axes[1:]
    return jnp.sum(x, axis=axes, keepdims=True) if axes else x
