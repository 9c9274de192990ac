"""Rotary positions: what a product depends on, worked angles, scalings, types, clear errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.nn.attention.positions import InterleavedRotary, Llama3Scaling, Rotary, select_scaling

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def heads(*shape):
    return jax.random.normal(jax.random.key(0), shape)


def test_a_product_depends_on_the_difference_of_positions_alone():
    query, key = heads(2, 1, 3, 1, 16)
    rotary = Rotary(theta=100.0)

    def product(m, n):
        turned = [rotary(x, jnp.full((1, 3), at)) for x, at in ((query[None], m), (key[None], n))]
        return np.asarray(jnp.sum(turned[0] * turned[1]))

    near = product(5, 2)
    # Sums of 48 float32 products near 1.
    np.testing.assert_allclose(product(8, 5), near, atol=1e-4)
    np.testing.assert_allclose(product(105, 102), near, atol=1e-4)
    assert abs(product(5, 3) - near) > 1e-2
    assert abs(product(2, 5) - near) > 1e-2


def test_each_pair_is_a_complex_number_turned_by_its_own_angle():
    x = heads(2, 7, 3, 8)
    places = jnp.array([[0, 1, 2, 3, 4, 5, 6], [3, 1, 4, 1, 5, 9, 2]])
    pairs = np.asarray(x[..., :4]) + 1j * np.asarray(x[..., 4:])
    # Theta 10000, K 8: a turn of 1, 0.1, 0.01 and 0.001 radians a position.
    angles = np.asarray(places)[..., None, None] * np.array([1.0, 0.1, 0.01, 0.001])
    expected = pairs * np.exp(1j * angles)
    found = np.asarray(Rotary()(x, places))
    # Float32 angles up to 9: their sines are right to 1e-6.
    np.testing.assert_allclose(found[..., :4] + 1j * found[..., 4:], expected, atol=1e-5)


def test_positions_none_are_those_of_a_row():
    x = heads(2, 5, 1, 4)
    places = jnp.broadcast_to(jnp.arange(5), (2, 5))
    np.testing.assert_array_equal(Rotary()(x, None), Rotary()(x, places))


def test_angles_are_float32_under_bfloat16():
    x = jnp.ones((1, 1, 1, 4), jnp.bfloat16)
    one, next_one = (Rotary()(x, jnp.array([[at]])) for at in (1024, 1025))
    assert one.dtype == jnp.bfloat16
    expected = np.cos(1025.0) - np.sin(1025.0)
    # A rounding to 8 bits of a number near 1.
    np.testing.assert_allclose(float(next_one[0, 0, 0, 0]), expected, atol=0.01)
    assert np.any(one != next_one)  # in bfloat16 both positions are 1024


def test_linear_scaling_reads_four_positions_as_one():
    x = heads(1, 5, 2, 8)
    scaled = Rotary(scaling=select_scaling({"rope_type": "linear", "factor": 4.0}))
    places = jnp.arange(5)[None]
    np.testing.assert_allclose(scaled(x, 4 * places), Rotary()(x, places), atol=1e-5)


def test_llama3_scaling_leaves_the_quick_and_divides_the_slow():
    # Turns within 8192 positions, the bounds being 1 and 4: 8, 2.5 (half way) and 0.5.
    turns = np.array([8.0, 2.5, 0.5])
    frequencies = 2 * np.pi * turns / 8192
    scaled = select_scaling(LLAMA3)(frequencies)
    np.testing.assert_allclose(scaled / frequencies, [1.0, 0.5 + 0.5 / 8, 1 / 8])


def test_equal_settings_are_equal_and_hash_alike():
    one, two = (Rotary(theta=5e5, scaling=select_scaling(LLAMA3)) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != Rotary(theta=5e5)
    assert select_scaling({}) is None
    assert isinstance(one.scaling, Llama3Scaling)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rope_type": "yarn", "factor": 4.0}, "rope_type='yarn' does not exist. Allowed: linear"),
        ({"rope_type": "dynamic", "factor": 2.0}, "rope_type='dynamic' does not exist"),
        ({"factor": 2.0}, "rope_type=None does not exist"),
        ({"rope_type": "linear"}, "lacks factor, which rope_type='linear' needs"),
        ({"rope_type": "linear", "factor": 0.0}, "factor=0.0 must be above 0"),
        ({"rope_type": "linear", "factr": 2.0}, "has no 'factr'. Did you mean 'factor'"),
        (LLAMA3 | {"low_freq_factor": 4.0}, "low_freq_factor=4.0 must be below"),
    ],
)
def test_a_scaling_that_is_none(settings, message):
    with pytest.raises(ValueError, match=message):
        select_scaling(settings)


def test_a_width_below_the_head_s_leaves_the_rest_as_it_is():
    x = np.asarray(heads(2, 5, 3, 8))
    found = np.asarray(Rotary(width=6)(x, None))
    np.testing.assert_array_equal(found[..., 6:], x[..., 6:])
    np.testing.assert_array_equal(found[..., :6], Rotary()(x[..., :6], None))


def test_interleaved_pairs_are_neighbours():
    x, order = heads(2, 5, 3, 8), np.array([0, 2, 4, 1, 3, 5])
    found = np.asarray(InterleavedRotary(width=6)(x, None))
    expected = Rotary()(x[..., order], None)
    np.testing.assert_array_equal(found[..., order], expected)
    np.testing.assert_array_equal(found[..., 6:], x[..., 6:])


def test_an_odd_width_has_no_pairs():
    with pytest.raises(ValueError, match="width must be even, not 3"):
        Rotary()(jnp.ones((1, 2, 1, 3)), None)
