"""Moving averages of parameters: what a step makes of them, and what they cost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.training import frozen, optimizers, step

NETWORK = {"wi": ("embed", "mlp"), "norm": ("norm",)}
AXES = {"policy": NETWORK, "average": NETWORK, "value": {"wi": ("embed", "mlp")}}
SHAPES = {"wi": (4, 4), "norm": (4,)}
SETTINGS = {"name": "adamw", "schedule": "constant", "learning_rate": 0.1, "weight_decay": 0.1}
AVERAGED = {"moving_average": {"average": "policy"}, "moving_average_decay": 0.75}


def draw():
    generator = np.random.default_rng(0)
    return jax.tree.map(
        lambda axes: jnp.asarray(generator.normal(size=(4,) * len(axes)), jnp.float32),
        AXES,
        is_leaf=lambda node: isinstance(node, tuple),
    )


def loss(params, batch, rng):
    """A sum in which every parameter takes part, the average too."""
    hidden = batch["inputs"]
    for network in params.values():
        hidden = jnp.tanh(hidden @ network["wi"]) * network.get("norm", 1.0)
    return jnp.sum(hidden**2), jnp.float32(hidden.size), {}


def run(settings, **parts):
    optimizer, schedule = optimizers.build(SETTINGS | settings, axes=AXES)
    trained = frozen.mask_of(settings, optimizers.as_specs(AXES))
    stopped = frozen.without_gradient(loss, trained=trained)
    train = step.make_train_step(stopped, optimizer, schedule=schedule, **parts)
    start = step.create_state(draw(), optimizer=optimizer, seed=0)
    return jax.jit(train)(start, {"inputs": jnp.ones((2, 4))})[0]


def test_the_average_moves_towards_what_a_step_made():
    params, after = draw(), run(AVERAGED)
    # The rest trains as if the average were frozen.
    expected = run({"frozen": ("average",)})
    jax.tree.map(
        np.testing.assert_array_equal,
        {name: after.params[name] for name in ("policy", "value")},
        {name: expected.params[name] for name in ("policy", "value")},
    )
    for name, mean in after.params["average"].items():
        new = after.params["policy"][name]
        np.testing.assert_allclose(
            mean, 0.75 * params["average"][name] + 0.25 * new, rtol=1e-5, atol=1e-6
        )
        assert not np.allclose(new, params["policy"][name])
    sizes = [sum(x.size for x in jax.tree.leaves(one.opt_state)) for one in (after, expected)]
    assert sizes[0] == sizes[1]


def test_every_update_of_a_step_moves_it():
    twice = run(AVERAGED, minibatches=2)
    once = run(AVERAGED)
    params = draw()["average"]["wi"]
    moves = [np.abs(one.params["average"]["wi"] - params).mean() for one in (once, twice)]
    assert moves[1] > 1.2 * moves[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"moving_average": {"averag": "policy"}}, r"'averag'.*Did you mean 'average'\?"),
        ({"moving_average": {"average": "polcy"}}, r"'polcy'.*Did you mean 'policy'\?"),
        ({"moving_average": {"average": "value"}}, "'average' cannot be the average of 'value'"),
        ({"moving_average_decay": 1.0}, r"moving_average_decay=1.0 must lie in \[0, 1\)"),
        ({"moving_average_decay": None}, "decay=None: set both or neither"),
        ({"moving_average": {}}, "decay=0.75: set both or neither"),
    ],
)
def test_paths_and_decays_that_do_not_fit_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        optimizers.build(SETTINGS | AVERAGED | changes, axes=AXES)
