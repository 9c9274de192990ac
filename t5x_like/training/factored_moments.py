"""Adafactor's second moments: row and column means of each layer's matrix."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Int

from t5x_like.training.layer_tensors import two_sides, without


class Factored(NamedTuple):
    """Factored second moments of a matrix: its row means and its column means."""

    row: Any
    column: Any


class FactoredRmsState(NamedTuple):
    """The number of steps, and the second moments: `Factored`, or an array of the full shape.

    All moments are float32.
    """

    step: Int[Array, ""]
    second_moment: Any


def scale_by_factored_rms(
    axes: Any, *, decay_exponent: float, min_size: int, epsilon: float
) -> optax.GradientTransformation:
    """Divide gradients by the square root of their second moments, see `optimizers.adafactor`."""

    def zeros(param: Array, spec: PartitionSpec) -> Array | Factored:
        sides = two_sides(param.shape, spec, min_size=min_size)
        if sides is None:
            return jnp.zeros(param.shape, jnp.float32)
        return Factored(*(jnp.zeros(without(param.shape, side), jnp.float32) for side in sides))

    def init(params: Any) -> FactoredRmsState:
        _check_axes(params, axes)
        return FactoredRmsState(jnp.zeros((), jnp.int32), jax.tree.map(zeros, params, axes))

    def update(gradients: Any, state: FactoredRmsState, params: Any = None):
        del params
        decay = 1.0 - (state.step + 1).astype(jnp.float32) ** -decay_exponent

        def one(gradient: Array, spec: PartitionSpec, moment: Array | Factored):
            gradient = gradient.astype(jnp.float32)
            squared = jnp.square(gradient) + epsilon
            if not isinstance(moment, Factored):
                moment = decay * moment + (1.0 - decay) * squared
                return gradient * jax.lax.rsqrt(moment), moment
            sides = two_sides(gradient.shape, spec, min_size=min_size)
            moment, inverse_roots = _factored_moment(squared, moment, sides=sides, decay=decay)
            return gradient * inverse_roots[0] * inverse_roots[1], moment

        pairs = jax.tree.map(one, gradients, axes, state.second_moment)
        updates, moments = (jax.tree.map(lambda _, p, i=i: p[i], axes, pairs) for i in range(2))
        return updates, FactoredRmsState(optax.safe_increment(state.step), moments)

    return optax.GradientTransformation(init, update)


def _factored_moment(
    squared: Array, moment: Factored, *, sides: Any, decay: Array
) -> tuple[Factored, tuple[Array, Array]]:
    """Return the updated moments, and two factors that multiply to 1 / sqrt(V) by broadcasting."""
    means = (jnp.mean(squared, axis=side) for side in sides)
    new = (decay * old + (1.0 - decay) * mean for old, mean in zip(moment, means, strict=True))
    moment = Factored(*new)
    row, column = (jnp.expand_dims(part, side) for part, side in zip(moment, sides, strict=True))
    row /= jnp.mean(row, axis=sides[1], keepdims=True)
    return moment, (jax.lax.rsqrt(row), jax.lax.rsqrt(column))


def _check_axes(params: Any, axes: Any) -> None:
    shapes = {jax.tree_util.keystr(k): v.shape for k, v in jax.tree.leaves_with_path(params)}
    named = {jax.tree_util.keystr(k): tuple(v) for k, v in jax.tree.leaves_with_path(axes)}
    if missing := sorted(shapes.keys() ^ named.keys()):
        raise ValueError(f"the parameters and their logical axes differ in {', '.join(missing)}")
    for path, shape in shapes.items():
        # A module without axis names gives (): its parameters are single, unsharded tensors.
        if len(named[path]) not in (0, len(shape)):
            raise ValueError(f"parameter {path} of shape {shape} has axes named {named[path]}")
