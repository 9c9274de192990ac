"""Everything a run needs to go on: what a checkpoint holds beside the position in the data."""

from typing import Any

import flax
import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Int, UInt32

from t5x_like.training import optimizers


class TrainState(flax.struct.PyTreeNode):
    """The state of a run after `step` steps, all plain arrays.

    `rng` is the raw data of a PRNG key that stays the same: step s draws from the key folded with
    s, so that a resumed run draws what the uninterrupted one would have drawn.
    """

    step: Int[Array, ""]
    params: Any
    opt_state: Any
    rng: UInt32[Array, "..."]


def create(params: Any, *, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    """The state before the first step. `params` are plain (unboxed) arrays.

    It can be jitted, and traced by `jax.eval_shape` for its shapes.
    """
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(params),
        rng=jax.random.key_data(jax.random.key(seed)),
    )


def logical_axes(state: TrainState, *, axes: Any) -> TrainState:
    """The logical axes of a state, or of its shapes, as a tree of PartitionSpecs like `state`.

    `axes` are those of the parameters, as for `optimizers.build`.
    """
    return state.replace(
        step=PartitionSpec(),
        params=optimizers.as_specs(axes),
        opt_state=optimizers.state_axes(state.opt_state, params=state.params, axes=axes),
        rng=PartitionSpec(),
    )
