"""The clipping of T5X: the gradient of the sum over the targets is what is clipped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.training import optimizers, step

AXES = {"kernel": ("embed", "mlp")}
SETTINGS = {"name": "sgd", "schedule": "constant", "learning_rate": 1.0}


def loss(params, batch, key):
    del key
    each = jnp.square(batch["x"] @ params["kernel"] - 1) @ jnp.ones(2)
    return jnp.sum(each * batch["weights"]), jnp.sum(batch["weights"]), {}


def clipped_by_t5x(gradient, threshold):
    """As t5x/adafactor.py, `apply_gradient`, has it (google-research/t5x)."""
    global_norm = np.sqrt(np.sum(np.square(gradient)))
    return gradient * threshold * np.minimum(1.0 / threshold, 1.0 / global_norm)


def clipped_elements(gradient, limit):
    """As optax.clip clips in a chain of T5X's, where the loss is a sum."""
    return np.clip(gradient, -limit, limit)


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("threshold", [0.5, 1e6])
@pytest.mark.parametrize(
    ("setting", "clip", "factor"),
    [
        ("clip_sum", clipped_by_t5x, 0),
        ("clip_sum_value", clipped_elements, 0),
        ("clip_norm", clipped_by_t5x, 1),
        ("clip_value", clipped_elements, 7),
    ],
)
def test_the_sum_over_the_targets_is_clipped_as_in_t5x(
    threshold, microbatches, setting, clip, factor
):
    settings = {**SETTINGS, setting: threshold, "loss_normalizing_factor": factor}
    optimizer, schedule = optimizers.build(settings, axes=AXES)
    train_step = jax.jit(
        step.make_train_step(loss, optimizer, schedule=schedule, microbatches=microbatches)
    )
    generator = np.random.default_rng(0)
    params = {"kernel": generator.normal(size=(3, 2)).astype(np.float32)}
    for weights in (np.ones(4, np.float32), np.array([1, 0, 1, 0], np.float32)):
        batch = {"x": generator.normal(size=(4, 3)).astype(np.float32), "weights": weights}
        start = step.create_state(params, optimizer=optimizer, seed=0)
        after, _ = train_step(start, batch)
        summed = jax.grad(lambda p, batch=batch: loss(p, batch, None)[0])(params)["kernel"]
        expected = clip(np.asarray(summed) / (factor or 1), threshold)
        found = params["kernel"] - np.asarray(after.params["kernel"])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_batch_without_weights_has_no_step():
    optimizer, schedule = optimizers.build({**SETTINGS, "clip_sum": 1.0}, axes=AXES)
    params = {"kernel": np.ones((3, 2), np.float32)}
    batch = {"x": np.ones((4, 3), np.float32), "weights": np.zeros(4, np.float32)}
    start = step.create_state(params, optimizer=optimizer, seed=0)
    after, _ = jax.jit(step.make_train_step(loss, optimizer, schedule=schedule))(start, batch)
    np.testing.assert_array_equal(after.params["kernel"], params["kernel"])


def test_elements_of_the_mean_s_gradient_are_clipped():
    optimizer, _ = optimizers.build({**SETTINGS, "clip_value": 0.5}, axes=AXES)
    gradient = {"kernel": np.array([[3, -0.25], [-2, 0.5], [0, 0.75]], np.float32)}
    updates, _ = optimizer.update(gradient, optimizer.init(gradient), gradient)
    expected = [[-0.5, 0.25], [0.5, -0.5], [0, -0.5]]  # a step of SGD with rate 1
    np.testing.assert_array_equal(updates["kernel"], expected)


def test_the_moments_have_the_scale_of_the_sum():
    # As in T5X without a `loss_normalizing_factor`, whose checkpoints a run continues from.
    settings = {"name": "adafactor", "schedule": "constant", "learning_rate": 1e-3}
    params = {"kernel": np.full((3, 2), 3, np.float32)}
    batch = {"x": np.eye(3, dtype=np.float32), "weights": np.ones(3, np.float32)}
    states = []
    for factor in (0, 1):
        optimizer, schedule = optimizers.build(
            {**settings, "loss_normalizing_factor": factor}, axes=AXES
        )
        start = step.create_state(params, optimizer=optimizer, seed=0)
        after, _ = step.make_train_step(loss, optimizer, schedule=schedule)(start, batch)
        states.append(jax.tree.leaves(after.opt_state))
    *_, mean, total = (np.concatenate([np.ravel(x) for x in leaves]) for leaves in states)
    counts = mean == total  # of steps
    assert 0 < counts.sum() < len(counts)
    np.testing.assert_allclose(total[~counts], 3**2 * mean[~counts], rtol=1e-6)


def test_a_limit_of_the_sum_with_a_factor_is_refused():
    with pytest.raises(ValueError, match=r"factor=2.0 and optimizer.clip_sum=1.0: set clip_norm"):
        optimizers.build({**SETTINGS, "loss_normalizing_factor": 2.0, "clip_sum": 1.0}, axes=AXES)


def test_two_kinds_of_clipping_are_refused():
    with pytest.raises(ValueError, match=r"clip_norm=1.0 and optimizer.clip_sum=2.0: set one"):
        optimizers.build({**SETTINGS, "clip_norm": 1.0, "clip_sum": 2.0}, axes=AXES)
