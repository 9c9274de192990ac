"""Optimizers: the published equations, one layer at a time whatever the parameters' layout."""

import inspect
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from t5x_like.training import optimizers, schedules
from t5x_like.training.optimizers import Factored, FactoredRmsState

N, D, H, K, F = 3, 6, 2, 4, 10
AXES = {
    "query": ("embed", "heads", "kv"),
    "out": ("heads", "kv", "embed"),
    "query_bias": ("heads", "kv"),
    "wi": ("embed", "mlp"),
    "norm": ("norm",),
}
SHAPES = {"query": (D, H, K), "out": (H, K, D), "query_bias": (H, K), "wi": (D, F), "norm": (D,)}
# Width 5 leaves [D, H*K] and [D, F] factored, and [D, H, K] would not be: H and K are smaller.
ADAFACTOR = {"name": "adafactor", "schedule": "constant", "min_dim_size_to_factor": 5}


def config(**settings):
    return {"name": "sgd", "schedule": "constant", "learning_rate": 0.1} | settings


def draw(seed, names=tuple(SHAPES)):
    """Stacked tensors whose layers differ in scale, so that shared statistics would show."""
    generator = np.random.default_rng(seed)
    stacks = {name: generator.normal(size=(N, *SHAPES[name])) for name in names}
    for stack in stacks.values():
        stack *= 10.0 ** np.arange(N).reshape(-1, *[1] * (stack.ndim - 1))
    return {name: stack.astype(np.float32) for name, stack in stacks.items()}


def run(settings, params, *, axes, gradients):
    """The parameters after a step with each of the gradients."""
    optimizer, _ = optimizers.build(settings, axes=axes)
    return descend(optimizer, params, gradients)


def descend(optimizer, params, gradients):
    @jax.jit
    def steps(params):
        state = optimizer.init(params)
        for gradient in gradients:
            updates, state = optimizer.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        return params

    return steps(params)


def assert_same(found, expected):
    """Equal up to a few float32 roundings of a tensor's largest element.

    Two programs may add the terms of a mean, and multiply, in another order.
    """

    def check(x, y):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-6 * np.max(np.abs(y)))

    jax.tree.map(check, found, expected)


def stacked(axes):
    return {name: ("layers", *names) for name, names in axes.items()}


def layer(tree, i):
    return jax.tree.map(lambda x: x[i], tree)


@pytest.mark.parametrize("name", sorted(optimizers.OPTIMIZERS))
def test_stacked_layers_step_as_layers_of_their_own(name):
    settings = config(**(ADAFACTOR if name == "adafactor" else {"name": name}), weight_decay=0.1)
    params, gradients = draw(0), [draw(seed) for seed in (1, 2, 3)]
    together = run(settings, params, axes=stacked(AXES), gradients=gradients)
    apart = run(
        settings,
        [layer(params, i) for i in range(N)],
        axes=[AXES] * N,
        gradients=[[layer(gradient, i) for i in range(N)] for gradient in gradients],
    )
    for i in range(N):
        assert_same(layer(together, i), apart[i])


def test_attention_kernels_step_as_matrices_of_merged_heads():
    matrix_shapes = {"query": (D, H * K), "out": (H * K, D)}
    matrix_axes = {"query": ("embed", "joined"), "out": ("joined", "embed")}

    def merged(tree):
        return {name: tree[name].reshape(matrix_shapes[name]) for name in tree}

    params, *gradients = (layer(draw(seed, tuple(matrix_shapes)), 0) for seed in (0, 1, 2))
    kernel_axes = {name: AXES[name] for name in matrix_shapes}
    kernels = run(config(**ADAFACTOR), params, axes=kernel_axes, gradients=gradients)
    matrices = run(
        config(**ADAFACTOR),
        merged(params),
        axes=matrix_axes,
        gradients=[merged(gradient) for gradient in gradients],
    )
    assert_same(merged(kernels), matrices)


def test_adafactor_is_that_of_optax_on_single_tensors():
    params, *gradients = (layer(draw(seed, ("wi", "norm")), 0) for seed in (0, 1, 2, 3))
    axes = {name: AXES[name] for name in params}
    ours = run(config(**ADAFACTOR), params, axes=axes, gradients=gradients)
    reference = optax.adafactor(0.1, min_dim_size_to_factor=5)
    assert_same(ours, descend(reference, params, gradients))


def test_adafactor_s_momentum_is_that_of_optax():
    params, *gradients = (layer(draw(seed, ("wi", "norm")), 0) for seed in (0, 1, 2, 3))
    axes = {name: AXES[name] for name in params}
    ours = run(config(**ADAFACTOR, momentum=0.9), params, axes=axes, gradients=gradients)
    reference = optax.adafactor(
        0.1, min_dim_size_to_factor=5, momentum=0.9, dtype_momentum=jnp.float32
    )
    assert_same(ours, descend(reference, params, gradients))


def test_adafactor_follows_the_paper_in_the_first_two_steps():
    x = np.linspace(-2, 2, 48).reshape(6, 8)
    gradients = [np.sin(np.arange(48.0)).reshape(6, 8) * scale for scale in (1.0, 5.0)]
    row, column, expected = np.zeros((6, 1)), np.zeros((1, 8)), x
    for t, g in enumerate(gradients, start=1):
        beta = 1 - t**-0.8
        row = beta * row + (1 - beta) * np.mean(g**2, axis=1, keepdims=True)
        column = beta * column + (1 - beta) * np.mean(g**2, axis=0, keepdims=True)
        u = g / np.sqrt(row * column / np.mean(row))
        u /= max(1.0, np.sqrt(np.mean(u**2)))
        expected = expected - 0.1 * np.sqrt(np.mean(expected**2)) * u
    ours = run(
        config(**ADAFACTOR),
        jnp.asarray(x, jnp.float32),
        axes=("embed", "mlp"),
        gradients=[jnp.asarray(g, jnp.float32) for g in gradients],
    )
    # Float32 against float64.
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_adafactor_moves_a_parameter_that_is_zero():
    moved = run(
        config(**ADAFACTOR),
        np.zeros(D, np.float32),
        axes=("norm",),
        gradients=[np.arange(1, D + 1, dtype=np.float32)],
    )
    np.testing.assert_allclose(moved, -0.1 * 1e-3, rtol=1e-6)


def test_adafactor_takes_bfloat16_gradients_and_keeps_float32_moments():
    optimizer, _ = optimizers.build(config(**ADAFACTOR), axes=AXES)
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), layer(draw(0), 0))
    state = jax.jit(optimizer.init)(params)
    updates, state = jax.jit(optimizer.update)(params, state, params)
    assert {x.dtype for x in jax.tree.leaves(state)} == {jnp.dtype("int32"), jnp.dtype("float32")}
    assert all(np.all(np.isfinite(np.float32(x))) for x in jax.tree.leaves(updates))


def test_adafactor_keeps_a_matrix_in_the_memory_of_its_sides():
    optimizer, _ = optimizers.build(config(**ADAFACTOR), axes=stacked(AXES))
    state = jax.eval_shape(optimizer.init, draw(0))
    moments = next(s for s in state[0] if isinstance(s, FactoredRmsState)).second_moment
    shapes = jax.tree.map(lambda x: x.shape, moments)
    assert shapes["query"] == Factored(row=(N, D), column=(N, H, K))
    assert shapes["out"] == Factored(row=(N, H, K), column=(N, D))
    assert shapes["wi"] == Factored(row=(N, D), column=(N, F))
    assert shapes["query_bias"] == (N, H, K)
    assert shapes["norm"] == (N, D)


def test_small_matrices_are_not_factored():
    optimizer, _ = optimizers.build(config(name="adafactor"), axes=("buckets", "heads"))
    assert not any(
        isinstance(leaf, Factored)
        for leaf in jax.tree.leaves(
            jax.eval_shape(optimizer.init, np.zeros((128, 127))),
            is_leaf=lambda x: isinstance(x, Factored),
        )
    )


@pytest.mark.parametrize(
    "settings",
    [
        ADAFACTOR,
        {"name": "adamw"},
        {"name": "lamb"},
        {"name": "sgd"},
        {"name": "sgd", "momentum": 0.9},
        ADAFACTOR | {"momentum": 0.9, "weight_decay_power": 2.0},
        ADAFACTOR | {"frozen": ("wi", "norm")},
        {"name": "adamw", "frozen": ("query", "norm")},
    ],
)
def test_state_axes_fit_the_state(settings):
    settings = config(**settings, clip_norm=1.0, weight_decay=0.1)
    axes, params = stacked(AXES), draw(0)
    optimizer, _ = optimizers.build(settings, axes=axes)
    state = jax.eval_shape(optimizer.init, params)
    named = optimizers.state_axes(state, params=params, axes=axes)
    assert jax.tree.structure(named) == jax.tree.structure(state)
    sizes = {"layers": N, "embed": D, "heads": H, "kv": K, "mlp": F, "norm": D}

    def check(leaf, spec):
        assert isinstance(spec, PartitionSpec)
        assert tuple(sizes[name] for name in spec) == leaf.shape

    jax.tree.map(check, state, named)


def test_weight_decay_takes_its_part_of_matrices_alone():
    params = draw(0)
    zeros = jax.tree.map(np.zeros_like, params)
    settings = config(learning_rate=0.5, weight_decay=0.1)
    decayed = run(settings, params, axes=stacked(AXES), gradients=[zeros])
    for name in ("query", "out", "wi"):
        np.testing.assert_allclose(decayed[name], params[name] * 0.95, rtol=1e-6)
    for name in ("norm", "query_bias"):
        np.testing.assert_array_equal(decayed[name], params[name])


def test_weight_decay_may_fall_with_the_square_of_the_learning_rate():
    settings = config(
        schedule="linear",
        learning_rate=0.5,
        end_learning_rate=0.1,
        decay_steps=1,
        weight_decay=1.0,
        weight_decay_power=2.0,
    )
    params = {"wi": draw(0)["wi"][0]}
    zeros = jax.tree.map(np.zeros_like, params)
    decayed = run(settings, params, axes={"wi": AXES["wi"]}, gradients=[zeros] * 2)
    expected = params["wi"] * (1 - 0.5**2) * (1 - 0.1**2)
    np.testing.assert_allclose(decayed["wi"], expected, rtol=1e-6)


def test_adamw_is_that_of_optax():
    params, *gradients = (layer(draw(seed), 0) for seed in (0, 1, 2))
    settings = config(name="adamw", weight_decay=0.1, b2=0.98, epsilon=1e-3)
    ours = run(settings, params, axes=AXES, gradients=gradients)
    mask = {name: name not in ("norm", "query_bias") for name in AXES}
    reference = optax.adamw(0.1, b2=0.98, eps=1e-3, weight_decay=0.1, mask=mask)
    assert_same(ours, descend(reference, params, gradients))


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_a_first_moment_in_bfloat16_takes_half_the_memory_and_nearly_the_same_steps(name):
    params, gradients = draw(0), [draw(seed) for seed in range(1, 5)]
    axes = {name: ("layers", *axes) for name, axes in AXES.items()}
    half = config(name=name, first_moment="bfloat16")
    kept = jax.eval_shape(optimizers.build(half, axes=axes)[0].init, params)
    sizes = {x.dtype: x.dtype.itemsize for x in jax.tree.leaves(kept) if x.ndim}
    assert sizes == {jnp.dtype("bfloat16"): 2, jnp.dtype("float32"): 4}
    expected = run(config(name=name), params, axes=axes, gradients=gradients)
    found = run(half, params, axes=axes, gradients=gradients)
    for key, x in expected.items():
        moved = np.abs(x - params[key])
        # The kept mean has 8 bits: a part in 256, after four steps a few.
        np.testing.assert_allclose(found[key], x, atol=0.02 * moved.max())
        assert (found[key] != x).any()


def test_adafactor_forgets_what_was_before_its_offset():
    # t5x/adafactor.py, step_offset: "to reset the second moment accumulators".
    params, *gradients = (layer(draw(seed, ("wi", "norm")), 0) for seed in range(6))
    axes = {name: AXES[name] for name in params}
    fresh, _ = optimizers.build(config(**ADAFACTOR), axes=axes)
    offset, _ = optimizers.build(config(**ADAFACTOR, decay_offset=2), axes=axes)
    new, old = fresh.init(params), offset.init(params)
    for gradient in gradients[:2]:
        _, old = offset.update(gradient, old, params)
    for gradient in gradients[2:]:
        (expected, new), (found, old) = (
            one.update(gradient, state, params) for one, state in ((fresh, new), (offset, old))
        )
        assert_same(found, expected)
    without, _ = optimizers.build(config(**ADAFACTOR), axes=axes)
    state = without.init(params)
    for gradient in gradients:
        other, state = without.update(gradient, state, params)
    assert any(np.any(found[name] != other[name]) for name in params)


def test_lion_is_that_of_optax():
    params, *gradients = (layer(draw(seed), 0) for seed in range(4))
    ours = run(config(name="lion", weight_decay=0.1), params, axes=AXES, gradients=gradients)
    mask = {name: name not in ("norm", "query_bias") for name in AXES}
    reference = optax.lion(0.1, weight_decay=0.1, mask=mask)
    assert_same(ours, descend(reference, params, gradients))


def test_adamax_follows_the_paper():
    params, *gradients = (layer(draw(seed, ("wi",)), 0) for seed in (0, 1, 2, 3))
    x, m, u = params["wi"].astype(np.float64), 0.0, 0.0
    for step, gradient in enumerate(gradients, start=1):
        m = 0.9 * m + 0.1 * gradient["wi"]
        u = np.maximum(0.98 * u, np.abs(gradient["wi"]) + 1e-3)
        x = x - 0.1 / (1 - 0.9**step) * m / u
    settings = config(name="adamax", b2=0.98, epsilon=1e-3)
    ours = run(settings, params, axes={"wi": AXES["wi"]}, gradients=gradients)
    np.testing.assert_allclose(ours["wi"], x, rtol=1e-5, atol=1e-6)


def test_lamb_is_that_of_optax_on_single_matrices():
    params, *gradients = (layer(draw(seed, ("query", "out", "wi")), 1) for seed in range(4))
    settings = config(name="lamb", weight_decay=0.1, b2=0.98, epsilon=1e-3)
    ours = run(settings, params, axes={name: AXES[name] for name in params}, gradients=gradients)
    reference = optax.lamb(0.1, b2=0.98, eps=1e-3, weight_decay=0.1)
    assert_same(ours, descend(reference, params, gradients))


def test_lamb_moves_gains_and_biases_as_adam_does():
    params, *gradients = (layer(draw(seed, ("norm", "query_bias")), 1) for seed in range(3))
    ours = run(
        config(name="lamb", weight_decay=0.1),
        params,
        axes={name: AXES[name] for name in params},
        gradients=gradients,
    )
    assert_same(ours, descend(optax.adam(0.1, eps=1e-6), params, gradients))


def test_lamb_moves_a_matrix_that_is_zero_and_leaves_one_without_gradient():
    zeros, ones = np.zeros((D, F), np.float32), np.ones((D, F), np.float32)
    moved = run(
        config(name="lamb"),
        {"zero": zeros, "still": ones},
        axes={"zero": AXES["wi"], "still": AXES["wi"]},
        gradients=[{"zero": ones, "still": zeros}],
    )
    np.testing.assert_allclose(moved["zero"], -0.1, rtol=1e-5)  # of Adam's epsilon
    np.testing.assert_array_equal(moved["still"], ones)


@pytest.mark.parametrize(("clip_norm", "expected"), [(1.0, [-0.6, -0.8]), (0.0, [-3.0, -4.0])])
def test_the_global_norm_is_clipped(clip_norm, expected):
    params = {"x": np.zeros(1, np.float32), "y": np.zeros(1, np.float32)}
    gradient = {"x": np.full(1, 3.0, np.float32), "y": np.full(1, 4.0, np.float32)}
    settings = config(learning_rate=1.0, clip_norm=clip_norm)
    moved = run(settings, params, axes={"x": (), "y": ()}, gradients=[gradient])
    found = np.concatenate([moved["x"], moved["y"]])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_schedule_is_followed():
    settings = config(schedule="linear", learning_rate=1.0, decay_steps=4, warmup_steps=None)
    _, schedule = optimizers.build(settings, axes=())
    moved = run(settings, np.float32(0), axes=(), gradients=[np.float32(1)] * 3)
    np.testing.assert_allclose(moved, -sum(float(schedule(step)) for step in range(3)), rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "adafacter"}, r"optimizer.name='adafacter'.*Did you mean 'adafactor'\?"),
        ({"lerning_rate": 1.0}, r"optimizer.lerning_rate is not .* sgd.*'learning_rate'\?"),
        ({"b2": 0.9}, r"optimizer.b2 is not a setting of sgd.*Allowed: .*momentum"),
        ({"schedule": "rsqr"}, r"optimizer.schedule='rsqr'.*Did you mean 'rsqrt'\?"),
        ({"learning_rate": None}, "optimizer.learning_rate is not set"),
        ({"clip_norm": -1.0}, "optimizer.clip_norm is -1"),
        ({"weight_decay": -0.1}, "optimizer.weight_decay is -0.1"),
        ({"weight_decay": 0.1, "weight_decay_power": 3}, "power=3 does not exist. Allowed: 1, 2"),
        ({"momentum": 1.0}, "optimizer.momentum is 1"),
        ({"name": "adafactor", "momentum": 1.5}, "optimizer.momentum is 1.5"),
        ({"name": "adamw", "b1": 1.0}, "optimizer.b1 is 1"),
        ({"name": "lamb", "b2": 1.0}, "optimizer.b2 is 1"),
        ({"name": "adamw", "first_moment": "bf16"}, "optimizer.first_moment='bf16'"),
        ({"name": "adafactor", "decay_exponent": 1.0}, "optimizer.decay_exponent is 1"),
        ({"name": "adafactor", "clipping_threshold": 0.0}, "optimizer.clipping_threshold is 0"),
        (
            {"name": "adafactor", "epsilon_gradient": -1.0},
            "optimizer.epsilon_gradient=-1.0",
        ),
        ({"name": "adamw", "epsilon": -1e-8}, "optimizer.epsilon=-1e-08 must be 0 or more"),
        ({"name": "adafactor", "decay_offset": -1}, "optimizer.decay_offset is -1"),
        ({"name": "lion", "b2": 1.0}, "optimizer.b2 is 1"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        optimizers.build(config(**settings), axes=AXES)


def test_axes_must_fit_the_parameters():
    optimizer, _ = optimizers.build(config(name="adafactor"), axes=AXES)
    with pytest.raises(ValueError, match=r"differ in \['extra'\]"):
        optimizer.init(layer(draw(0), 0) | {"extra": np.zeros(1, np.float32)})
    with pytest.raises(ValueError, match=r"\['norm'\] of shape \(3, 6\)"):
        optimizer.init(draw(0))


def test_the_page_lists_every_optimizer_with_its_settings_and_every_schedule():
    page = Path(__file__).parents[2] / "docs" / "optimizers.md"
    listed = {}
    for name, settings in re.findall(
        r"^\| `(\w+)` \|.*\|([^|]*)\|$", page.read_text("utf-8"), re.MULTILINE
    ):
        listed[name] = dict(one.split("=") for one in re.findall(r"`(\w+=[^`]+)`", settings))
    expected = {
        name: {
            key: repr(parameter.default)
            for key, parameter in inspect.signature(make).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }
        for name, make in optimizers.OPTIMIZERS.items()
    }
    assert {name: listed[name] for name in expected} == expected
    named = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", page.read_text("utf-8"), re.MULTILINE)
    cells = {name for cell in named for name in re.findall(r"`(\w+)`", cell)}
    common = {*optimizers._COMMON_SETTINGS, *optimizers._SCHEDULE_SETTINGS}
    assert cells >= {*schedules.SCHEDULES} | common - {"name", "schedule"}
