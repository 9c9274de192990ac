"""Layer-wise learning-rate decay: the factor of every layer, however its parameters are stored."""

import flax.linen as nn
import flax.traverse_util
import jax
import numpy as np
import optax
import pytest

from t5x_like import systems
from t5x_like.nn.stack import unstack_layers
from t5x_like.training import optimizers
from tests.programs import tiny_encoder

ENCODERS = (
    "bert",
    "roberta",
    "spanbert",
    "albert",
    "structbert",
    "electra",
    "distilbert",
    "unilm",
)
PLAIN = {"name": "sgd", "schedule": "constant", "learning_rate": 1.0}


def network(system, **model):
    """The axes of a tiny network by their paths, and ones in the shapes of its parameters."""
    settings = tiny_encoder.settings(system).model.to_dict()
    module = systems.build(system, settings | {"head": "classification"} | model)
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())["params"]
    axes = flat(nn.get_partition_spec(boxed))
    return axes, {path: np.ones(leaf.shape, np.float32) for path, leaf in flat(boxed).items()}


def flat(tree):
    return flax.traverse_util.flatten_dict(nn.unbox(tree), sep="/")


def step(axes, ones, **settings):
    """How far a gradient of ones moves each parameter."""
    nested = [flax.traverse_util.unflatten_dict(tree, sep="/") for tree in (axes, ones)]
    optimizer, _ = optimizers.build(PLAIN | settings, axes=nested[0])
    updates, _ = optimizer.update(nested[1], optimizer.init(nested[1]), nested[1])
    return {path: -np.asarray(update) for path, update in flat(updates).items()}


def depth(path):
    """The depth of a parameter below the head, or None for one of a stack of layers."""
    if "layers/" in path:
        return None
    return 0 if path.startswith("head/") else "embeddings"


@pytest.mark.parametrize("system", ENCODERS)
def test_each_layer_of_every_encoder_has_its_rate_and_the_head_the_full_one(system):
    axes, ones = network(system, layers=3, **({"share": "none"} if system == "albert" else {}))
    moved = step(axes, ones, layer_decay=0.5)
    assert {depth(path) for path in moved} == {None, 0, "embeddings"}
    for path, update in moved.items():
        if depth(path) is None:
            rows = update.reshape(3, -1)
            np.testing.assert_array_equal(
                rows, np.broadcast_to([[1 / 8], [1 / 4], [1 / 2]], rows.shape)
            )
        else:
            np.testing.assert_array_equal(update, 1.0 if depth(path) == 0 else 1 / 16)


def test_looped_layers_have_the_rates_of_scanned_ones():
    scanned, looped = (
        flax.traverse_util.unflatten_dict(
            step(*network("bert", layers=3, loop=loop), layer_decay=0.8), sep="/"
        )
        for loop in ("scan", "unroll")
    )
    apart = unstack_layers(scanned["encoder"]["layers"], layers=3)
    jax.tree.map(np.testing.assert_array_equal, apart, looped["encoder"]["layers"])
    for part in ("embeddings", "head"):
        jax.tree.map(np.testing.assert_array_equal, scanned[part], looped[part])


def test_shared_layers_count_once_for_each_group():
    axes, ones = network("albert", layers=4, groups=2, inner_layers=2, share="attention")
    moved = step(axes, ones, layer_decay=0.5)
    attention = moved["encoder/layers/self_attention/out/bias"]
    np.testing.assert_array_equal(attention[..., 0], [[1 / 16, 1 / 8], [1 / 4, 1 / 2]])
    feed_forward = moved["encoder/layers/feed_forward/wo/bias"]
    np.testing.assert_array_equal(feed_forward[..., 0].ravel(), 0.5 ** np.arange(8, 0, -1))
    assert np.all(moved["projection/kernel"] == 0.5**9)


def test_alternating_layers_are_counted_in_their_order():
    axes = {"embeddings/x": ("embed",), "head/x": ("embed",)}
    axes |= {f"decoder/layers/block/block_{n}/x": ("layers", "embed") for n in range(2)}
    axes |= {"decoder/entrance/x": ("embed",), "decoder/final_norm/x": ("embed",)}
    ones = {path: np.ones((2,) * len(names), np.float32) for path, names in axes.items()}
    moved = {path: update[..., 0] for path, update in step(axes, ones, layer_decay=0.5).items()}
    np.testing.assert_array_equal(moved["decoder/layers/block/block_0/x"], [1 / 16, 1 / 4])
    np.testing.assert_array_equal(moved["decoder/layers/block/block_1/x"], [1 / 8, 1 / 2])
    assert [moved[f"{path}/x"] for path in ("embeddings", "decoder/entrance")] == [1 / 32] * 2
    assert [moved[f"{path}/x"] for path in ("head", "decoder/final_norm")] == [1, 1]


def test_adamw_steps_as_one_optimizer_for_each_layer():
    """Against optax with a learning rate of its own for each group of parameters."""
    axes, ones = network("bert", loop="unroll")
    random = np.random.default_rng(0)
    params, *gradients = (
        {path: random.normal(size=leaf.shape).astype(np.float32) for path, leaf in ones.items()}
        for _ in range(3)
    )
    groups = {"embeddings": 0.8**3, "encoder/layers/layer_0": 0.8**2, "encoder/layers/layer_1": 0.8}
    groups["head"] = 1.0

    def decays(params):  # gains and biases do not
        return {path: path.endswith(("kernel", "embedding")) for path in params}

    reference = optax.multi_transform(
        {g: optax.adamw(0.1 * f, weight_decay=0.1, mask=decays) for g, f in groups.items()},
        {path: next(g for g in groups if path.startswith(f"{g}/")) for path in params},
    )
    settings = {"name": "adamw", "learning_rate": 0.1, "weight_decay": 0.1, "layer_decay": 0.8}
    ours, _ = optimizers.build(PLAIN | settings, axes=axes)
    found, expected = (descend(one, params, gradients) for one in (ours, reference))
    # The rate and the factor are multiplied in another order.
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), found, expected)


def descend(optimizer, params, gradients):
    @jax.jit
    def steps(params):
        state = optimizer.init(params)
        for gradient in gradients:
            updates, state = optimizer.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        return params

    return steps(params)


def test_a_frozen_tower_does_not_count():
    axes, ones = network("distilbert")
    axes |= {f"teacher/{path}": names for path, names in axes.items()}
    ones |= {f"teacher/{path}": leaf for path, leaf in ones.items()}
    moved = step(axes, ones, layer_decay=0.5, frozen=("teacher",))
    assert all(np.all(u == 0) for path, u in moved.items() if path.startswith("teacher/"))
    assert np.all(moved["embeddings/token/embedding"] == 1 / 8)


def test_the_layers_below_frozen_ones_keep_their_rates():
    moved = step(*network("bert"), layer_decay=0.5, frozen=("encoder",))
    assert np.all(moved["encoder/layers/block/feed_forward/wi/kernel"] == 0)
    assert np.all(moved["embeddings/token/embedding"] == 1 / 8)


def test_without_decay_there_is_nothing_in_the_optimizer():
    axes, ones = network("bert")
    states = [
        optimizers.build(PLAIN | settings, axes=axes)[0].init(ones)
        for settings in ({}, {"layer_decay": 1.0}, {"layer_decay": None})
    ]
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[2])


@pytest.mark.parametrize("decay", [0.0, -0.5, 1.1])
def test_a_decay_out_of_its_range_is_refused(decay):
    with pytest.raises(ValueError, match=rf"layer_decay={decay} must be above 0 and at most 1"):
        step(*network("bert"), layer_decay=decay)


def test_two_towers_or_no_head_are_refused():
    axes = {f"{tower}/layers/block/x": ("layers",) for tower in ("encoder", "decoder")}
    with pytest.raises(ValueError, match=r"one tower .* has decoder/layers, encoder/layers: set"):
        optimizers.build(PLAIN | {"layer_decay": 0.8}, axes=axes | {"head/x": ()})
    with pytest.raises(ValueError, match=r"one tower of layers, and this one has none: set"):
        optimizers.build(PLAIN | {"layer_decay": 0.8}, axes={"head/x": ()})
    with pytest.raises(ValueError, match=r"no parameter is under 'head': set it to 1"):
        optimizers.build(PLAIN | {"layer_decay": 0.8}, axes={"encoder/layers/block/x": ("layers",)})
