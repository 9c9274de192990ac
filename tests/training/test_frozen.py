"""Frozen parameters: they stay, cost no memory, and change nothing for the others."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5x_like.training import flops, frozen, optimizers, step

AXES = {
    "teacher": {"kernel": ("embed", "mlp")},
    "encoder": {"layers": {"wi": ("layers", "embed", "mlp")}, "norm": ("norm",)},
    "head": ("embed", "mlp"),
}
SHAPES = {
    "teacher": {"kernel": (4, 4)},
    "encoder": {"layers": {"wi": (3, 4, 4)}, "norm": (4,)},
    "head": (4, 4),
}
AXES_AS_SPECS = optimizers.as_specs(AXES)
FROZEN = ("teacher", "encoder/layers")
STILL = {
    "teacher": {"kernel": True},
    "encoder": {"layers": {"wi": True}, "norm": False},
    "head": False,
}


def draw(seed):
    generator = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: jnp.asarray(generator.normal(size=shape), jnp.float32),
        SHAPES,
        is_leaf=lambda node: isinstance(node, tuple),
    )


def build(name, **settings):
    common = {"schedule": "constant", "learning_rate": 0.1, "weight_decay": 0.1, "clip_norm": 1.0}
    return optimizers.build(common | {"name": name} | settings, axes=AXES)


def loss(params, batch, rng):
    """A sum in which every parameter takes part."""
    hidden = batch["inputs"] @ params["teacher"]["kernel"]
    for kernel in params["encoder"]["layers"]["wi"]:
        hidden = jnp.tanh(hidden @ kernel)
    outputs = (hidden * params["encoder"]["norm"]) @ params["head"]
    return jnp.sum(outputs**2), jnp.float32(outputs.size), {}


@pytest.mark.parametrize("name", sorted(optimizers.OPTIMIZERS))
def test_the_rest_trains_as_if_it_were_alone(name):
    optimizer, _ = build(name, frozen=FROZEN)
    params, gradients = draw(0), draw(1)
    found, found_state = optimizer.update(gradients, optimizer.init(params), params)
    rest = (
        {"norm": params["encoder"]["norm"], "head": params["head"]}
        for params in (params, gradients)
    )
    params, gradients = rest
    settings = {"schedule": "constant", "learning_rate": 0.1, "weight_decay": 0.1, "clip_norm": 1.0}
    alone, _ = optimizers.build(
        settings | {"name": name}, axes={"norm": ("norm",), "head": ("embed", "mlp")}
    )
    expected, expected_state = alone.update(gradients, alone.init(params), params)
    np.testing.assert_array_equal(found["encoder"]["norm"], expected["norm"])
    np.testing.assert_array_equal(found["head"], expected["head"])
    np.testing.assert_array_equal(found["teacher"]["kernel"], 0)
    np.testing.assert_array_equal(found["encoder"]["layers"]["wi"], 0)
    sizes = [
        sorted(leaf.size for leaf in jax.tree.leaves(each))
        for each in (found_state, expected_state)
    ]
    assert sizes[0] == sizes[1]


def test_steps_leave_frozen_parameters_bit_for_bit_and_move_the_rest():
    optimizer, schedule = build("adamw", frozen=FROZEN)
    trained = frozen.trainable(optimizers.as_specs(AXES), frozen=FROZEN)
    train = step.make_train_step(
        frozen.without_gradient(loss, trained=trained), optimizer, schedule=schedule
    )
    before = step.create_state(draw(0), optimizer=optimizer, seed=0)
    after, metrics = jax.jit(train)(before, {"inputs": jnp.ones((2, 4))})

    def check(still, old, new):
        assert np.array_equal(old, new) == still

    jax.tree.map(check, STILL, before.params, after.params)
    gradient = jax.grad(lambda p: loss(p, {"inputs": jnp.ones((2, 4))}, None)[0] / 8)(before.params)
    norm = optax.tree.norm([gradient["encoder"]["norm"], gradient["head"]])
    # Two programs add squares in another order.
    np.testing.assert_allclose(metrics["grad_norm"].compute(), norm, rtol=1e-5)


def test_the_gradient_of_what_is_frozen_is_not_computed():
    trained = frozen.trainable(optimizers.as_specs(AXES), frozen=FROZEN)
    params, batch = draw(0), {"inputs": jnp.ones((2, 4))}
    forward = flops.count(lambda p: loss(p, batch, None)[0], params)
    stopped = frozen.without_gradient(loss, trained=trained)
    gradient = jax.grad(lambda p: stopped(p, batch, None)[0])
    one = 2 * 2 * 4 * 4
    assert forward == 5 * one  # the teacher, three layers, the head
    assert flops.count(gradient, params) == forward + 2 * one  # by the head, and by its inputs


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (("teachr",), r"'teachr', but no parameter is there. Did you mean 'teacher'\?"),
        (("encoder/layer",), r"'encoder/layer'.*Did you mean 'encoder/layers'\?.*encoder/norm"),
        (("encoder/layers/wo",), r"Did you mean 'encoder/layers/wi'\?"),
        (("teacher", "hea"), r"'hea'.*Did you mean 'head'\?"),
        ("teacher", r"frozen='teacher' must be a tuple of paths: \('teacher',\)"),
        (("teacher", "encoder", "head"), "leaves no parameter to train"),
    ],
)
def test_paths_that_do_not_fit_are_named(paths, message):
    with pytest.raises(ValueError, match=message):
        build("adamw", frozen=paths)


def test_the_modules_named_as_trained_are_those_that_are_not_frozen():
    mask = frozen.trainable(AXES_AS_SPECS, trained=("n*m", "head"))
    assert mask == {
        "teacher": {"kernel": False},
        "encoder": {"layers": {"wi": False}, "norm": True},
        "head": True,
    }
    both = frozen.mask_of({"trained": ("encoder",), "frozen": ("encoder/norm",)}, AXES_AS_SPECS)
    assert jax.tree.leaves(both).count(True) == 1
    assert both["encoder"]["layers"]["wi"]
    assert frozen.mask_of({"trained": (), "frozen": None}, AXES_AS_SPECS) is None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("norms",), r"trained has 'norms', but no module has this name. Did you mean 'norm'\?"),
        ("norm", r"trained='norm' must be a tuple of names: \('norm',\)"),
    ],
)
def test_names_that_no_module_has_are_refused(names, message):
    with pytest.raises(ValueError, match=message):
        build("adamw", trained=names)


@pytest.mark.parametrize("none", [None, (), []])
def test_nothing_is_frozen_by_default(none):
    optimizer, _ = build("adamw", frozen=none)
    params = draw(0)
    updates, _ = optimizer.update(draw(1), optimizer.init(params), params)
    assert all(jnp.all(update != 0) for update in jax.tree.leaves(updates))
