"""The training step: accumulation, randomness, what it measures, what happens at the edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from t5x_like.losses import cross_entropy
from t5x_like.training import metrics, optimizers, step

B, L, D, V = 8, 6, 4, 7
AXES = {"embedding": ("vocab", "embed"), "kernel": ("embed", "vocab")}


def loss(params, batch, key):
    x = jnp.tanh(params["embedding"][batch["inputs"]])
    if key is not None:
        # Large enough to see, and the same in every row: two keys give two losses.
        x += batch["noise"][0] * jax.random.normal(key, (D,))
    return cross_entropy(x @ params["kernel"], batch["targets"], batch["weights"], z_loss=0.01)


@pytest.fixture
def params():
    generator = np.random.default_rng(0)
    shapes = {"embedding": (V, D), "kernel": (D, V)}
    return {name: generator.normal(size=shapes[name]).astype(np.float32) for name in shapes}


@pytest.fixture
def batch():
    generator = np.random.default_rng(1)
    # From one target token in the first row to all in the last.
    weights = np.arange(L) < np.linspace(1, L, B).round()[:, None]
    return {
        "inputs": generator.integers(0, V, (B, L), np.int32),
        "targets": generator.integers(0, V, (B, L), np.int32),
        "weights": weights.astype(np.float32),
        "noise": np.zeros(B, np.float32),
    }


def make(params, *, name="sgd", microbatches=1, **settings):
    config = {"name": name, "schedule": "linear", "learning_rate": 0.5, "decay_steps": 10}
    optimizer, schedule = optimizers.build(config | settings, axes=AXES)
    train_step = step.make_train_step(loss, optimizer, schedule=schedule, microbatches=microbatches)
    start = jax.jit(lambda params: step.create_state(params, optimizer=optimizer, seed=0))(params)
    return start, jax.jit(train_step)


@pytest.mark.parametrize("microbatches", [2, 8])
def test_accumulation_is_the_undivided_batch(params, batch, microbatches):
    start, whole = make(params)
    after, expected = whole(start, batch)
    start, divided = make(params, microbatches=microbatches)
    after_divided, found = divided(start, batch)
    # Float32 sums over the rows in another order.
    for x, y in zip(*map(jax.tree.leaves, (after.params, after_divided.params)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    assert metrics.compute(found) == pytest.approx(metrics.compute(expected), rel=1e-6)


def test_a_step_is_the_gradient_of_the_mean_over_target_tokens(params, batch):
    @jax.jit
    @jax.grad
    def gradient(params):
        total, weight, _ = loss(params, batch, None)
        return total / weight

    start, train_step = make(params, microbatches=4)
    after, _ = train_step(start, batch)
    for name in params:
        expected = params[name] - 0.5 * gradient(params)[name]
        np.testing.assert_allclose(after.params[name], expected, rtol=1e-5, atol=1e-6)


def test_a_step_that_is_not_finite_is_skipped_where_that_is_asked_for(params, batch):
    start, plain = make(params, name="adamw")
    optimizer, schedule = optimizers.build(
        {"name": "adamw", "schedule": "linear", "learning_rate": 0.5, "decay_steps": 10}, axes=AXES
    )
    train_step = jax.jit(
        step.make_train_step(loss, optimizer, schedule=schedule, skip_nonfinite=True)
    )
    bad = batch | {"noise": np.full(B, np.nan, np.float32)}
    skipped, found = train_step(start, bad)
    assert int(skipped.step) == 1
    for name in ("params", "opt_state", "rng"):
        jax.tree.map(np.testing.assert_array_equal, getattr(skipped, name), getattr(start, name))
    assert float(found["steps_skipped"].compute()) == 1
    assert all(float(np.sum(one.count)) == 0 for key, one in found.items() if key != step.SKIPPED)

    after, found = train_step(start, batch)
    expected, others = plain(start, batch)
    jax.tree.map(np.testing.assert_array_equal, after, expected)
    assert float(found.pop("steps_skipped").compute()) == 0
    assert metrics.compute(found) == metrics.compute(others)


def test_minibatches_are_steps_on_some_rows_after_the_others(params, batch):
    settings = {"name": "adamw", "schedule": "linear", "learning_rate": 0.1, "decay_steps": 10}
    optimizer, schedule = optimizers.build(settings, axes=AXES)
    start = jax.jit(lambda params: step.create_state(params, optimizer=optimizer, seed=0))(params)
    several = step.make_train_step(
        loss, optimizer, schedule=schedule, minibatches=4, inner_epochs=2, microbatches=2
    )
    one = jax.jit(step.make_train_step(loss, optimizer, schedule=schedule, microbatches=2))
    order = np.asarray(step._order(start, batch, minibatches=4, inner_epochs=2))
    epochs = order.reshape(2, -1)
    np.testing.assert_array_equal(np.sort(epochs), [np.arange(B)] * 2)
    assert not np.array_equal(*epochs)
    after, found = jax.jit(several)(start, batch)
    alone, each = start, []
    for rows in order:
        alone, values = one(alone, {name: x[rows] for name, x in batch.items()})
        each.append(values)
    assert (int(after.step), int(alone.step)) == (1, 8)
    # Two programs add float32 in another order; Adam's first updates depend on signs alone.
    for x, y in zip(*map(jax.tree.leaves, (after.params, alone.params)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    jax.tree.map(lambda x, y: x.shape == y.shape, after.opt_state, alone.opt_state)
    assert metrics.compute(found) == pytest.approx(metrics.compute(metrics.merge(each)), rel=1e-4)
    second = step._order(after, batch, minibatches=4, inner_epochs=2)
    assert not np.array_equal(order, second)


def test_an_update_that_is_not_finite_is_skipped_alone(params, batch):
    optimizer, schedule = optimizers.build(
        {"name": "sgd", "schedule": "constant", "learning_rate": 0.5}, axes=AXES
    )
    several = step.make_train_step(
        loss, optimizer, schedule=schedule, minibatches=B, skip_nonfinite=True
    )
    start = jax.jit(lambda params: step.create_state(params, optimizer=optimizer, seed=0))(params)
    batch["noise"][0] = np.nan
    after, found = jax.jit(several)(start, batch)
    assert float(found["steps_skipped"].compute()) == 1 / B
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(after.params))
    assert not np.array_equal(after.params["kernel"], params["kernel"])


def test_metrics_of_a_step(params, batch):
    start, train_step = make(params, clip_norm=1e-3)
    middle, _ = train_step(start, batch)
    _, found = train_step(middle, batch)
    values = metrics.compute(found)
    total, weight, sums = jax.device_get(jax.jit(loss)(middle.params, batch, None))
    expected = {
        "loss": total / weight,
        "cross_entropy": sums["cross_entropy"][0] / weight,
        "perplexity": np.exp(sums["cross_entropy"][0] / weight),
        "z_loss": sums["z_loss"][0] / weight,
        "accuracy": sums["accuracy"][0] / weight,
        "param_norm": np.sqrt(sum(np.sum(x**2) for x in jax.device_get(middle.params).values())),
        "learning_rate": 0.45,
    }
    # Float32 sums in another order.
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-5, err_msg=name)
    # Of the gradient as it is, not as the clipping leaves it.
    assert values["grad_norm"] > 0.1
    assert values.keys() == expected.keys() | {"grad_norm"}


def test_the_share_of_tokens_in_the_rows_is_measured(params, batch):
    start, train_step = make(params)
    segments = np.array([[1, 1, 2, 0, 0, 0]] * (B - 1) + [[1] * L])
    _, found = train_step(start, batch | {"encoder_segment_ids": segments})
    assert metrics.compute(found)["filled"] == pytest.approx((3 * (B - 1) + L) / (B * L))
    # Targets that are not packed have weights, and no segments.
    both = {"encoder_segment_ids": segments, "decoder_loss_weights": np.tile([1.0, 0, 0], (B, 1))}
    _, found = train_step(make(params)[0], batch | both)
    assert metrics.compute(found)["filled"] == pytest.approx((4 * (B - 1) + L + 1) / (B * (L + 3)))


def test_bits_of_the_hardware_follow_the_seed_and_the_step():
    def draw(params, batch, key):
        total = jnp.sum(jax.random.uniform(key, (4,))) * params["x"]
        return total, jnp.ones(()), {"rbg": (jnp.float32("rbg" in str(key.dtype)), jnp.ones(()))}

    optimizer, schedule = optimizers.build(
        {"name": "sgd", "schedule": "constant", "learning_rate": 1e-6}, axes={"x": ()}
    )

    def losses(seed, random_bits):
        train_step = jax.jit(
            step.make_train_step(
                draw, optimizer, schedule=schedule, microbatches=2, random_bits=random_bits
            )
        )
        now = step.create_state({"x": np.float32(1)}, optimizer=optimizer, seed=seed)
        found = []
        for _ in range(2):
            now, values = train_step(now, {"rows": np.zeros(2)})
            found.append(float(metrics.compute(values)["loss"]))
        return found, float(metrics.compute(values)["rbg"])

    (first, second), is_rbg = losses(0, "unsafe_rbg")
    assert is_rbg
    assert first != second
    assert losses(0, "unsafe_rbg")[0] == [first, second] != losses(1, "unsafe_rbg")[0]
    assert not losses(0, "threefry")[1]
    with pytest.raises(ValueError, match=r"train.random_bits='philox'"):
        losses(0, "philox")


def test_evaluation_gives_the_same_metrics_without_a_key(params, batch):
    _, train_step = make(params)
    start, _ = make(params)
    evaluated = metrics.compute(jax.jit(step.make_eval_step(loss))(params, batch)[0])
    trained = metrics.compute(train_step(start, batch)[1])
    assert evaluated.keys() == {"loss", "cross_entropy", "perplexity", "z_loss", "accuracy"}
    assert evaluated == pytest.approx({name: trained[name] for name in evaluated}, rel=1e-5)


def test_a_metric_that_is_an_array_is_that_of_the_undivided_batch(batch):
    def count(params, batch, key):
        weights = batch["weights"]
        choices = jnp.sum(jax.nn.one_hot(batch["inputs"], V) * weights[..., None], axis=(0, 1))
        return params * 0.0, 1.0, {"load": (choices[None], jnp.sum(weights))}

    config = {"name": "sgd", "schedule": "constant", "learning_rate": 1.0}
    optimizer, schedule = optimizers.build(config, axes=())
    start = step.create_state(jnp.zeros(()), optimizer=optimizer, seed=0)
    train_step = step.make_train_step(count, optimizer, schedule=schedule, microbatches=4)
    found = metrics.compute(jax.jit(train_step)(start, batch)[1])["load"]
    expected = np.bincount(batch["inputs"].ravel(), batch["weights"].ravel(), minlength=V)
    np.testing.assert_allclose(found, [expected / batch["weights"].sum()], rtol=1e-6)


def test_every_step_and_microbatch_draws_its_own_numbers():
    def draw(params, batch, key):
        x = jax.random.uniform(key)
        return params * 0.0, 1.0, {"draw": (x, 1.0), "square": (x**2, 1.0)}

    def draws(start, microbatches):
        train_step = step.make_train_step(
            draw, optimizer, schedule=schedule, microbatches=microbatches
        )
        after, found = jax.jit(train_step)(start, {"inputs": np.zeros(4)})
        values = metrics.compute({name: found[name] for name in ("draw", "square")})
        return after, values["draw"], values["square"] - values["draw"] ** 2

    config = {"name": "sgd", "schedule": "constant", "learning_rate": 1.0}
    optimizer, schedule = optimizers.build(config, axes=())
    start = step.create_state(jnp.zeros(()), optimizer=optimizer, seed=0)
    second, draw_of_first, variance = draws(start, 1)
    # One draw has no variance but for rounding, two different ones have.
    assert variance == pytest.approx(0, abs=1e-6)
    assert draws(start, 2)[2] > 1e-4
    assert draws(second, 1)[1] != draw_of_first
    assert draws(start, 1)[1] == draw_of_first


def test_a_restored_state_goes_on_bitwise(params, batch):
    batch["noise"][:] = 1
    start, train_step = make(params, name="adafactor", microbatches=2)
    middle, _ = train_step(start, batch)
    end, _ = train_step(middle, batch)
    restored, _ = train_step(jax.device_get(middle), batch)
    jax.tree.map(np.testing.assert_array_equal, end, restored)


def test_a_state_is_plain_arrays_with_axes(params):
    made, _ = make(params, name="adamw")
    dtypes = {x.dtype.name for x in jax.tree.leaves(made)}
    assert dtypes == {"int32", "float32", "uint32"}
    named = step.logical_axes(made, axes=AXES)
    assert jax.tree.structure(named) == jax.tree.structure(made)
    assert named.params["kernel"] == PartitionSpec("embed", "vocab")
    assert named.step == named.rng == PartitionSpec()


def test_a_batch_without_targets_leaves_the_parameters_alone(params, batch):
    batch["weights"] = np.zeros((B, L), np.float32)
    start, train_step = make(params, microbatches=2)
    after, found = train_step(start, batch)
    jax.tree.map(np.testing.assert_array_equal, after.params, params)
    assert found["loss"].count == 0
    assert metrics.compute(found)["grad_norm"] == 0


def test_a_loss_that_is_not_finite_is_seen(params, batch):
    start, train_step = make({**params, "kernel": params["kernel"] * np.inf})
    values = metrics.compute(train_step(start, batch)[1])
    with pytest.raises(FloatingPointError, match="loss is nan"):
        metrics.require_finite(values, step=1)


def test_microbatches_of_a_sharded_batch_stay_on_their_devices(params, batch):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    start, train_step = make(params, microbatches=2)
    compiled = train_step.lower(start, jax.device_put(batch, rows)).compile().as_text()
    for moves in ("all-to-all", "all-gather", "collective-permute"):
        assert moves not in compiled
    assert "all-reduce" in compiled


def test_microbatches_must_divide_the_batch(params, batch):
    start, train_step = make(params, microbatches=3)
    with pytest.raises(ValueError, match=r"microbatches is 3.*batch of 8"):
        train_step(start, batch)
    with pytest.raises(ValueError, match="microbatches is 0"):
        make(params, microbatches=0)
    with pytest.raises(ValueError, match=r"minibatches is 3.*batch of 8"):
        step._order(start, batch, minibatches=3, inner_epochs=1)


def test_a_few_steps_of_adafactor_learn(params, batch):
    start, train_step = make(params, name="adafactor", learning_rate=0.3)
    losses = []
    for _ in range(10):
        start, found = train_step(start, batch)
        losses.append(float(found["loss"].compute()))
    assert losses[-1] < 0.7 * losses[0]
    assert start.step == 10
