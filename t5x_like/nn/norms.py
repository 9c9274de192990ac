"""Layer norms, with their gradients and the logical axes of their parameters."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.nn.compute import Compute

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


def _backward(epsilon, subtract_mean, kept, by_y):
    """Compute dL/dx = r (g - mean(g) - n mean(g n)), with n = (x - m) r and g = dL/dy gain."""
    del epsilon
    x, mean, root, gain = kept
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
