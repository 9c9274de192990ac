"""Losses of labels, positions of masked language modeling, sums of losses: values by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from t5x_like import losses
from t5x_like.losses.masked_lm import predicted_positions

B, L, C = 4, 6, 3
LOG = np.log
# One program each, where every operation alone would be one.
classification = jax.jit(losses.classification)
cross_entropy = jax.jit(losses.cross_entropy)
regression = jax.jit(losses.regression)
spans = jax.jit(losses.spans)
tagging = jax.jit(losses.tagging)
positions_of = jax.jit(predicted_positions, static_argnames="share")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_the_predicted_positions_come_first_and_in_order():
    weights = jnp.asarray([[0, 1, 0, 0, 0.5, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 2], [0] * 8])
    positions, kept = positions_of(weights, share=0.25)
    np.testing.assert_array_equal(positions, [[1, 4], [7, 0], [0, 1]])
    np.testing.assert_array_equal(kept, [[1, 0.5], [2, 0], [0, 0]])


@pytest.mark.parametrize(
    ("length", "share", "places"), [(8, 0.25, 2), (9, 0.25, 3), (25, 0.28, 7), (5, 1.0, 5)]
)
def test_as_many_positions_as_the_share_rounded_up(length, share, places):
    weights = jax.ShapeDtypeStruct((1, length), jnp.float32)
    positions, _ = jax.eval_shape(functools.partial(predicted_positions, share=share), weights)
    assert positions.shape == (1, places)


def test_one_position_too_many_makes_the_loss_nan():
    weights = jnp.asarray([[1, 1, 1, 0], [0, 1, 1, 0]])
    kept = np.asarray(positions_of(weights, share=0.5)[1])
    np.testing.assert_array_equal(np.isnan(kept), [[True, True], [False, False]])
    logits, targets = np.zeros((2, 2, C), np.float32), np.zeros((2, 2), np.int32)
    assert np.isnan(cross_entropy(logits, targets, kept)[0])
    assert np.isfinite(cross_entropy(logits[1:], targets[1:], kept[1:])[0])


def test_the_loss_at_the_predicted_positions_equals_that_over_all_tokens():
    logits = normal(B, L, C)
    targets = np.random.default_rng(1).integers(0, C, (B, L))
    weights = np.float32([[0, 1, 0, 0.5, 0, 0], [1, 0, 0, 0, 0, 1], [0] * 6, [0, 0, 0, 0, 0, 3]])

    def of_few(logits):
        places, kept = predicted_positions(jnp.asarray(weights), share=1 / 3)
        few = jnp.take_along_axis(logits, places[..., None], axis=1)
        return losses.cross_entropy(few, jnp.take_along_axis(targets, places, axis=1), kept)[0]

    def of_all(logits):
        return losses.cross_entropy(logits, targets, weights)[0]

    few, whole = (jax.jit(jax.value_and_grad(loss))(logits) for loss in (of_few, of_all))
    # Float32 sums over fewer terms.
    for found, expected in zip(few, whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_positions_are_found_without_moving_rows_between_devices():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    weights = jax.ShapeDtypeStruct((16, L), jnp.float32, sharding=rows)
    compiled = jax.jit(lambda w: predicted_positions(w, share=0.5)).lower(weights).compile()
    assert "all-gather" not in compiled.as_text()


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_out_of_its_range_is_refused(share):
    with pytest.raises(ValueError, match=rf"predicted={share} must lie in \(0, 1\]"):
        predicted_positions(jnp.ones((1, 4)), share=share)


def test_classification_by_hand():
    logits = LOG(np.float32([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [0.2, 0.2, 0.6]]))
    labels, weights = jnp.asarray([0, 1, 2]), jnp.asarray([1, 2, 0])
    total, weight, metrics = classification(logits, labels, weights)
    np.testing.assert_allclose(total, -LOG(0.5) - 2 * LOG(0.2), rtol=1e-6)
    assert weight == 3
    assert metrics.keys() == {"cross_entropy", "accuracy", "constant_accuracy"}
    assert metrics["accuracy"] == (1, 3)
    counts, weight = metrics["constant_accuracy"]
    assert (counts.tolist(), weight) == ([1, 2, 0], 3)  # a constant is right in 2 of 3


def test_tagging_by_hand():
    right, wrong = [0.8, 0.1, 0.1], [0.1, 0.8, 0.1]
    logits = LOG(np.float32([[right, wrong], [right, right], [wrong, wrong]]))
    weights = jnp.asarray([[1, 0], [1, 1], [0, 0]])
    tags = jnp.asarray([[0, -1], [0, 1], [0, 0]])  # what is not counted may be no tag at all
    total, weight, metrics = tagging(logits, tags, weights)
    np.testing.assert_allclose(total, -2 * LOG(0.8) - LOG(0.1), rtol=1e-6)
    assert weight == 3
    assert metrics["accuracy"] == (2, 3)
    assert metrics["constant_accuracy"][0].tolist() == [2, 1, 0]
    assert metrics["exact"] == (1, 2)


def test_regression_by_hand():
    values, weights = jnp.asarray([1.0, 5.0, jnp.nan]), jnp.asarray([1, 2, 0])

    @jax.jit
    @jax.grad
    def gradient(predictions):
        return losses.regression(predictions, values, weights)[0]

    predictions = jnp.asarray([3.0, 4.0, 7.0])
    total, weight, metrics = regression(predictions, values, weights)
    assert (total, weight) == (4 + 2 * 1, 3)
    assert metrics == {"squared_error": (6, 3), "absolute_error": (2 + 2 * 1, 3)}
    np.testing.assert_array_equal(gradient(predictions), [4.0, -4.0, 0.0])


def test_spans_by_hand():
    probabilities = np.float32([[0.2, 0.5, 0.3, 0.9], [0.5, 0.25, 0.25, 0.9], [1, 1, 1, 1]])
    logits = LOG(probabilities)
    mask = jnp.asarray([[1, 1, 1, 0], [1, 1, 1, 0], [0] * 4], bool)
    answer = jnp.asarray([[1, 2], [0, 0], [0, 0]])
    total, weight, metrics = spans(logits, logits, answer, mask)
    expected = -(LOG(0.5) + LOG(0.3)) / 2 - LOG(0.5)
    np.testing.assert_allclose(total, expected, rtol=1e-6)
    assert weight == 2
    assert metrics["exact"] == (1, 2)
    np.testing.assert_allclose(metrics["cross_entropy"][0], expected, rtol=1e-6)


def test_the_gradient_of_spans_keeps_to_the_mask():
    mask = jnp.asarray([[1, 1, 0, 0], [0] * 4, [1] * 4], bool)
    answer = jnp.asarray([[0, 1], [0, 0], [2, 3]])

    def loss(start, end):
        return losses.spans(start, end, answer, mask)[0]

    gradients = jax.jit(jax.grad(loss, argnums=(0, 1)))
    for gradient in gradients(normal(3, 4), normal(3, 4, seed=1)):
        np.testing.assert_array_equal(gradient != 0, mask)


@pytest.mark.parametrize("place", [-1, 2, 4])
def test_an_answer_that_cannot_be_is_not_finite(place):
    mask = jnp.asarray([[1, 1, 0, 0]], bool)
    answer, logits = jnp.asarray([[0, place]]), np.zeros((1, 4), np.float32)
    assert not np.isfinite(spans(logits, logits, answer, mask)[0])


def _each(rows):
    """Every loss of the rows given, with weights that differ."""
    logits, tags = normal(B, L, C)[rows], np.random.default_rng(1).integers(0, C, (B, L))[rows]
    weights = np.arange(B * L, dtype=np.float32).reshape(B, L)[rows] % 3
    mask = np.arange(L) < np.array([0, 3, 4, 6])[:, None]
    answer = np.array([[0, 0], [1, 2], [0, 3], [5, 5]])
    return {
        "classification": classification(logits[:, 0], tags[:, 0], weights[:, 1]),
        "tagging": tagging(logits, tags, weights),
        "regression": regression(logits[:, 0, 0], logits[:, 0, 1], weights[:, 1]),
        "spans": spans(logits[..., 0], logits[..., 1], answer[rows], mask[rows]),
    }


def test_parts_of_a_batch_add_up():
    parts = (slice(B), slice(1), slice(1, B))
    whole, first, second = (jax.device_get(_each(rows)) for rows in parts)
    # Float32 sums in another order.
    jax.tree.map(
        lambda x, y, z: np.testing.assert_allclose(x + y, z, rtol=1e-6), first, second, whole
    )


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"predictions \(4,\) need .* \(4, 1\) and \(4,\)"):
        losses.regression(np.zeros(4), np.zeros((4, 1)), np.ones(4))
    with pytest.raises(ValueError, match=r"shape \(4,\), not \(3,\) and \(4,\)"):
        losses.classification(np.zeros((4, C)), np.zeros(3, np.int32), np.ones(4))


def _term(total, weight, **metrics):
    sums = {name: (jnp.float32(value), jnp.float32(weight)) for name, value in metrics.items()}
    return jnp.float32(total), jnp.float32(weight), sums


def test_combined_losses_are_the_scaled_sum_of_their_means():
    total, weight, metrics = losses.combine(
        {
            "masked": (1.0, _term(6, 4, cross_entropy=6)),
            "pairs": (0.5, _term(9, 3, accuracy=2)),
            "none": (7.0, _term(0, 0, accuracy=0)),
        }
    )
    assert weight == 4
    np.testing.assert_allclose(total / weight, 6 / 4 + 0.5 * 9 / 3)
    assert metrics.keys() == {"cross_entropy", "pairs/accuracy", "none/accuracy"}
    assert metrics["pairs/accuracy"] == (2, 3)


def test_the_scale_of_the_first_term_counts_too():
    total, weight, _ = losses.combine({"a": (2.0, _term(6, 4)), "b": (1.0, _term(1, 1))})
    assert (total / weight) == 2 * 6 / 4 + 1


def test_nothing_to_count_gives_zero_and_its_gradient_too():
    def loss(x):
        nothing = losses.classification(x, jnp.zeros(B, jnp.int32), jnp.zeros(B))
        return losses.combine({"a": (1.0, nothing), "b": (1.0, nothing)})[0]

    value, gradient = jax.jit(jax.value_and_grad(loss))(normal(B, C))
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


def test_a_term_that_is_not_a_number_is_not_hidden():
    broken = _term(jnp.nan, jnp.nan)
    assert np.isnan(losses.combine({"a": (1.0, _term(1, 1)), "b": (1.0, broken)})[0])


def test_each_term_moves_what_it_depends_on():
    def loss(x, y):
        labels, weights = jnp.zeros(B, jnp.int32), jnp.ones(B)
        return losses.combine(
            {
                "a": (1.0, losses.classification(x, labels, weights)),
                "b": (0.0, losses.classification(y, labels, weights)),
            }
        )[0]

    gradients = jax.jit(jax.grad(loss, argnums=(0, 1)))
    by_first, by_second = jax.device_get(gradients(normal(B, C), normal(B, C)))
    assert np.all(by_first != 0)
    np.testing.assert_array_equal(by_second, 0)


def test_combining_nothing_is_refused():
    with pytest.raises(ValueError, match="no losses"):
        losses.combine({})
