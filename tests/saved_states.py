"""Small train states for tests of checkpoints: made, saved and compared bit for bit."""

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from t5x_like.checkpoints import Checkpoints

POSITION = {0: b"zero", 1: b"\x00\xff position", 11: b"eleven"}


@flax.struct.dataclass
class State:
    """As much of a train state as there is to save."""

    step: Array
    params: dict
    opt_state: tuple
    rng: Array


def make_mesh(*shape):
    return jax.make_mesh(shape, ("a", "b"), axis_types=(AxisType.Auto,) * 2)


def make_state(*, width=8, seed=0, optimizer=None):
    keys = jax.random.split(jax.random.key(seed), 3)
    params = {
        "decoder": {"kernel": jax.random.normal(keys[0], (16, width))},
        "embedding": jax.random.normal(keys[1], (8, width), jnp.bfloat16),
        "scale": jax.random.normal(keys[2], (width,)),
    }
    optimizer = optimizer or optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return State(
        step=jnp.int32(seed),
        params=params,
        opt_state=optimizer.init(params),
        rng=jax.random.key_data(keys[0]),
    )


def abstract_of(state, *, mesh=None, spec=None):
    """The shapes of a state, its matrices sharded by `spec`."""
    mesh = mesh or make_mesh(1, 1)
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=NamedSharding(mesh, spec if spec and x.ndim == 2 else P())
        ),
        state,
    )


def assert_same(restored, state):
    """Bit for bit, and the same kinds of containers."""
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for new, old in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        assert new.dtype == old.dtype
        assert (new.shape, np.asarray(new).tobytes()) == (old.shape, np.asarray(old).tobytes())


def save_all(folder, states, **settings):
    with Checkpoints(folder, **settings) as saver:
        for step, state in states.items():
            saver.save(step, state, POSITION)
