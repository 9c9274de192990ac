"""Gradual unfreezing: when each layer begins to change, however its parameters are stored."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.training import optimizers

PLAIN = {"name": "sgd", "schedule": "constant", "learning_rate": 1.0}
AXES = {
    "token_embedder": ("vocab", "embed"),
    "encoder": {
        "final_norm": ("norm",),
        "layers": {"block": {"wi": ("layers", "embed", "mlp")}},
        "relative_position_bias": ("relative", "heads"),
    },
    "decoder": {"layers": {f"layer_{n}": {"wi": ("embed", "mlp")} for n in range(2)}},
    "pairs": {"layers": {"block": {f"block_{k}": {"wi": ("layers", "embed")} for k in range(2)}}},
}
ONES = {
    "token_embedder": jnp.ones((2, 2)),
    "encoder": {
        "final_norm": jnp.ones(2),
        "layers": {"block": {"wi": jnp.ones((3, 2, 2))}},
        "relative_position_bias": jnp.ones((2, 2)),
    },
    "decoder": {"layers": {f"layer_{n}": {"wi": jnp.ones((2, 2))} for n in range(2)}},
    "pairs": {"layers": {"block": {f"block_{k}": {"wi": jnp.ones((2, 2))} for k in range(2)}}},
}


def updates(steps, **settings):
    """What each of the first updates is, of a gradient of ones."""
    optimizer, _ = optimizers.build(PLAIN | settings, axes=AXES)
    update, state, found = jax.jit(optimizer.update), optimizer.init(ONES), []
    for _ in range(steps):
        own, state = update(ONES, state, ONES)
        found.append(jax.tree.map(np.asarray, own))
    return found


def test_one_more_layer_of_each_tower_changes_after_every_share_of_the_steps():
    found = updates(13, unfreeze_steps=12)

    def begins(choose):
        """The first step at which each layer changes."""
        return [int(np.argmax(column)) for column in np.array([choose(one) for one in found]).T]

    assert begins(lambda one: np.all(one["encoder"]["layers"]["block"]["wi"], (1, 2))) == [8, 4, 0]
    loops = [f"layer_{n}" for n in range(2)]
    looped = begins(lambda one: [one["decoder"]["layers"][n]["wi"].all() for n in loops])
    assert looped == [6, 0]
    groups = begins(
        lambda one: np.stack(
            [one["pairs"]["layers"]["block"][f"block_{k}"]["wi"].all(1) for k in range(2)], axis=1
        ).ravel()
    )
    assert groups == [9, 6, 3, 0]
    for one in found:
        assert one["token_embedder"].all()
        assert one["encoder"]["final_norm"].all()
        assert one["encoder"]["relative_position_bias"].all()
    jax.tree.map(np.testing.assert_array_equal, found[12], updates(1)[0])


def test_a_frozen_layer_stays_bit_for_bit_under_weight_decay_and_momentum():
    first = updates(1, unfreeze_steps=12, name="adamw", weight_decay=0.1)[0]
    still = first["encoder"]["layers"]["block"]["wi"][:2]
    params = np.array([[0.0, -0.0], [1e-38, -3.0]], np.float32) + np.zeros_like(still)
    assert (params + still).tobytes() == params.tobytes()
    assert first["encoder"]["layers"]["block"]["wi"][2].all()


@pytest.mark.parametrize("steps", [-1, 2.5, True])
def test_steps_that_are_no_number_of_steps_are_refused(steps):
    with pytest.raises(ValueError, match=f"unfreeze_steps={steps} must be a whole number of steps"):
        optimizers.build(PLAIN | {"unfreeze_steps": steps}, axes=AXES)


def test_a_network_without_layers_is_refused():
    with pytest.raises(ValueError, match="unfreeze_steps=12 needs a network with towers of layers"):
        optimizers.build(PLAIN | {"unfreeze_steps": 12}, axes={"head": ("embed",)})
