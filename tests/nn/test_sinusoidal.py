"""Sinusoidal positions: the paper's formula, its property, positions given or counted."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.nn.compute import Compute
from t5x_like.nn.embeddings import SinusoidalPositions


def vectors(positions=None, *, length=0, features=8, dtype=jnp.float32):
    module = SinusoidalPositions(features=features, compute=Compute(dtype=dtype))
    return np.asarray(jax.jit(functools.partial(module.apply, {}, length=length))(positions))


def test_the_formula_of_section_3_5():
    found = np.asarray(vectors(length=50, features=6))[0]
    expected = [
        [
            (np.sin if feature % 2 == 0 else np.cos)(place / 10_000 ** (feature // 2 * 2 / 6))
            for feature in range(6)
        ]
        for place in range(50)
    ]
    # Angles up to 50 carry float32 roundings of 50 * 2^-24.
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_positions_may_be_given():
    counted = vectors(length=9)
    np.testing.assert_array_equal(
        vectors(np.array([[3, 4, 0], [8, 8, 1]]), length=3)[0, 1], counted[0, 4]
    )
    given = vectors(np.array([[3, 4, 0], [8, 8, 1]]), length=3)
    assert given.shape == (2, 3, 8)
    np.testing.assert_array_equal(given[1], counted[0, np.array([8, 8, 1])])


def test_a_shift_is_one_turn_wherever_it_starts():
    found = np.asarray(vectors(length=40), np.float64)[0]
    turn = np.linalg.lstsq(found[:20], found[7:27], rcond=None)[0]
    # Solved from the first places, right for the others, but for float32 roundings.
    np.testing.assert_allclose(found[20:33] @ turn, found[27:40], atol=1e-4)


def test_16_bits_distinguish_far_positions():
    found = vectors(length=512, dtype=jnp.bfloat16)
    assert found.dtype == jnp.bfloat16
    assert len(np.unique(np.asarray(found[0], np.float32), axis=0)) == 512


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match=r"model.d_model=7 is odd"):
        vectors(length=3, features=7)
