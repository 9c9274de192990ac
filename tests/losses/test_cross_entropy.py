"""The cross-entropy of tokens: value, gradient, padding, targets outside the vocabulary, cost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from t5x_like import losses

cross_entropy = jax.jit(losses.cross_entropy, static_argnames=("z_loss", "label_smoothing"))
V = 11
SHAPE = (3, 5)


@pytest.fixture
def tokens():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(*SHAPE, V)).astype(np.float32) * 3
    targets = generator.integers(0, V, SHAPE, np.int32)
    weights = generator.choice(np.float32([0.0, 0.5, 1.0, 2.0]), SHAPE)
    return logits, targets, weights


def by_definition(logits, targets, weights, *, z_loss, label_smoothing):
    """The docstring's equation with every [..., V] array written out."""
    logits = logits.astype(jnp.float32)
    low = label_smoothing / (V - 1)
    q = jnp.where(jax.nn.one_hot(targets, V, dtype=bool), 1 - label_smoothing, low)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    negative_entropy = jnp.sum(jax.scipy.special.xlogy(q, q), axis=-1)
    expected = jnp.sum(q * (logits - log_z[..., None]), axis=-1)
    return jnp.sum(weights * (negative_entropy - expected + z_loss * log_z**2))


@pytest.mark.parametrize("z_loss", [0.0, 0.01])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_value_and_gradient_follow_the_definition(tokens, z_loss, label_smoothing):
    logits, targets, weights = tokens
    settings = {"z_loss": z_loss, "label_smoothing": label_smoothing}
    expected, expected_gradient = jax.value_and_grad(by_definition)(*tokens, **settings)
    loss, gradient = jax.value_and_grad(
        lambda x: cross_entropy(x, targets, weights, **settings)[0]
    )(logits)
    # Both are float32 sums over 15 tokens and 11 words in another order.
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-6)


def test_bfloat16_logits_cost_only_their_own_rounding(tokens):
    logits, targets, weights = tokens
    rounded = logits.astype(jnp.bfloat16)

    def loss(x):
        return cross_entropy(x, targets, weights, z_loss=0.01, label_smoothing=0.1)[0]

    value, gradient = jax.value_and_grad(loss)(rounded)
    exact_value, exact_gradient = jax.value_and_grad(loss)(rounded.astype(jnp.float32))
    np.testing.assert_allclose(value, exact_value, rtol=1e-6)
    assert value.dtype == jnp.float32
    assert gradient.dtype == jnp.bfloat16
    np.testing.assert_array_equal(gradient, exact_gradient.astype(jnp.bfloat16))


def test_huge_logits_stay_finite():
    logits = jnp.asarray([[1e4, -1e4, 0.0], [-jnp.inf, 3e4, 3e4]])
    loss, _, _ = cross_entropy(logits, jnp.asarray([1, 2]), jnp.ones(2))
    np.testing.assert_allclose(loss, 2e4 + np.log(2), rtol=1e-6)


def test_the_smoothed_loss_is_zero_at_the_smoothed_targets():
    targets = jnp.asarray([0, 3])
    q = jnp.where(jax.nn.one_hot(targets, V, dtype=bool), 0.8, 0.2 / (V - 1))
    loss, _, _ = cross_entropy(jnp.log(q) + 7.0, targets, jnp.ones(2), label_smoothing=0.2)
    # The logits are about 7 and their logarithms exact to 1e-6.
    np.testing.assert_allclose(loss, 0.0, atol=1e-5)


def test_metrics_are_free_of_smoothing_and_z_loss(tokens):
    logits, targets, weights = tokens
    plain, weight, _ = cross_entropy(*tokens)
    _, _, metrics = cross_entropy(*tokens, z_loss=0.01, label_smoothing=0.1)
    np.testing.assert_allclose(metrics["cross_entropy"][0], plain, rtol=1e-6)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    np.testing.assert_allclose(metrics["z_loss"][0], jnp.sum(0.01 * log_z**2 * weights), rtol=1e-5)
    correct = jnp.argmax(logits, axis=-1) == targets
    assert metrics["accuracy"][0] == jnp.sum(correct * weights)
    assert all(count == weight == jnp.sum(weights) for _, count in metrics.values())


def test_accuracy_breaks_ties_as_argmax_does():
    logits = jnp.asarray([[2.0, 5.0, 5.0, 1.0]] * 4)
    targets = jnp.arange(4)
    _, _, metrics = cross_entropy(logits, targets, jnp.ones(4))
    assert metrics["accuracy"][0] == jnp.sum(jnp.argmax(logits, axis=-1) == targets) == 1


def test_parts_of_a_batch_add_up(tokens):
    whole = cross_entropy(*tokens, z_loss=0.01)
    parts = [cross_entropy(*(x[i : i + 1] for x in tokens), z_loss=0.01) for i in range(SHAPE[0])]
    # Float32 sums in another order.
    for total, *partial in zip(*map(jax.tree.leaves, [whole, *parts]), strict=True):
        np.testing.assert_allclose(sum(partial), total, rtol=1e-6)


@pytest.mark.parametrize("unknown", [-1, V])
def test_an_unknown_target_is_nan_unless_it_has_no_weight(tokens, unknown):
    logits, targets, _ = tokens
    targets[0, 0] = unknown
    weights = np.ones(SHAPE, np.float32)
    for smoothing in (0.0, 0.1):
        assert jnp.isnan(cross_entropy(logits, targets, weights, label_smoothing=smoothing)[0])
    weights[0, 0] = 0
    value, gradient = jax.value_and_grad(lambda x: cross_entropy(x, targets, weights)[0])(logits)
    assert jnp.isfinite(value)
    assert jnp.all(jnp.isfinite(gradient))
    assert not jnp.any(gradient[0, 0])


def test_integer_weights_count_as_floats(tokens):
    logits, targets, _ = tokens
    loss, weight, _ = cross_entropy(logits, targets, jnp.ones(SHAPE, jnp.int32))
    assert loss.dtype == weight.dtype == jnp.float32
    assert weight == 15


def test_the_backward_pass_scatters_nothing(tokens):
    logits, targets, weights = tokens
    gradient = jax.grad(lambda x: cross_entropy(x, targets, weights, label_smoothing=0.1)[0])
    assert "scatter" not in str(jax.make_jaxpr(gradient)(logits))


def test_a_sharded_vocabulary_is_not_gathered():
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    rows = NamedSharding(mesh, PartitionSpec("data"))
    columns = NamedSharding(mesh, PartitionSpec("data", None, "model"))
    logits = jax.ShapeDtypeStruct((4, 8, 32), jnp.float32, sharding=columns)
    targets = jax.ShapeDtypeStruct((4, 8), jnp.int32, sharding=rows)
    weights = jax.ShapeDtypeStruct((4, 8), jnp.float32, sharding=rows)

    def loss(logits, targets, weights):
        return cross_entropy(logits, targets, weights, z_loss=1e-4, label_smoothing=0.1)[0]

    gradient = jax.jit(jax.grad(loss))
    compiled = gradient.lower(logits, targets, weights).compile()
    assert "all-gather" not in compiled.as_text()
    assert compiled.output_shardings.is_equivalent_to(columns, 3)


def test_bad_settings_and_shapes_are_refused(tokens):
    logits, targets, weights = tokens
    with pytest.raises(ValueError, match=r"z_loss=-1 must be 0 or more"):
        cross_entropy(*tokens, z_loss=-1)
    with pytest.raises(ValueError, match=r"label_smoothing=1.*\[0, 1\)"):
        cross_entropy(*tokens, label_smoothing=1)
    with pytest.raises(ValueError, match=r"shape \(3, 5\), not \(3,\) and \(3, 5\)"):
        cross_entropy(logits, targets[:, 0], weights)
