"""The train state: everything in a checkpoint except the position in the data."""

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

    Attributes:
        step: the number of steps taken.
        params: the parameters.
        opt_state: the optimizer's state.
        rng: the raw data of a PRNG key that never changes. The random numbers of step s come from
            this key folded with s, so a resumed run uses the same numbers as an uninterrupted run.
        carry: the memory that is passed from batch to batch, arrays [B, ...]; in a run of several
            tasks {task: memory}. None for tasks without a memory.
    """

    step: Int[Array, ""]
    params: Any
    opt_state: Any
    rng: UInt32[Array, "..."]
    carry: Any = None


def create(params: Any, *, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    """Create the state before the first step, without a memory.

    It can be jitted, or traced by `jax.eval_shape` for the shapes.

    Args:
        params: plain (unboxed) arrays.
    """
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(params),
        rng=jax.random.key_data(jax.random.key(seed)),
    )


def logical_axes(state: TrainState, *, axes: Any) -> TrainState:
    """Return the logical axes of a state without a memory: a tree like `state` of PartitionSpecs.

    Args:
        state: the state or its shapes.
        axes: the logical axes of the parameters, see `optimizers.build`.
    """
    return state.replace(
        step=PartitionSpec(),
        params=optimizers.as_specs(axes),
        opt_state=optimizers.state_axes(state.opt_state, params=state.params, axes=axes),
        rng=PartitionSpec(),
    )
