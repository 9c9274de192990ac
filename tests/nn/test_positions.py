"""T5's relative position buckets."""

import functools

import jax
import numpy as np
import pytest

from t5x_like.nn.attention.positions import relative_position_bucket
from t5x_like.systems.t5 import RelativePositionBias


def buckets(distances, *, bidirectional):
    settings = {"bidirectional": bidirectional, "buckets": 32, "max_distance": 128}
    bucket = jax.jit(functools.partial(relative_position_bucket, **settings))
    return bucket(np.array(distances)).tolist()


def test_past_distances_are_exact_and_then_logarithmic():
    assert buckets([0, -1, -2, -15], bidirectional=False) == [0, 1, 2, 15]
    # 16 + floor(16 * log(d / 16) / log(128 / 16)) by hand for d = 16, 32, 64, 127; then the last.
    assert buckets([-16, -32, -64, -127, -128, -5000], bidirectional=False) == [
        16,
        21,
        26,
        31,
        31,
        31,
    ]


def test_a_decoder_puts_the_future_in_bucket_zero():
    assert buckets([1, 7, 500], bidirectional=False) == [0, 0, 0]


def test_an_encoder_halves_the_buckets_between_past_and_future():
    past = buckets([0, -1, -7, -8, -127, -900], bidirectional=True)
    future = buckets([1, 7, 8, 127, 900], bidirectional=True)
    assert past == [0, 1, 7, 8, 15, 15]
    assert future == [17, 23, 24, 31, 31]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_host_computes_the_buckets_that_the_device_does(bidirectional):
    distances = np.arange(-300, 301)
    settings = {"bidirectional": bidirectional, "buckets": 32, "max_distance": 128}
    assert buckets(distances, bidirectional=bidirectional) == (
        relative_position_bucket(distances, **settings).tolist()
    )


def test_an_offset_selects_the_rows_of_the_full_bias():
    module = RelativePositionBias(heads=3)
    kind = {"keys": 9, "bidirectional": False}
    init = functools.partial(module.init, queries=9, offset=0, **kind)
    params = jax.jit(init)(jax.random.key(0))
    full, rows = (
        np.asarray(jax.jit(functools.partial(module.apply, queries=n, **kind))(params, offset=at))
        for n, at in ((9, 0), (2, 5))
    )
    np.testing.assert_array_equal(rows, full[:, :, 5:7])


@pytest.mark.parametrize(("buckets", "distance"), [(3, 128), (0, 128), (8, 4)])
def test_too_few_buckets_for_the_distance_are_named(buckets, distance):
    module = RelativePositionBias(heads=3, buckets=buckets, max_distance=distance)
    with pytest.raises(ValueError, match=f"relative_buckets={buckets} must be 4 or more"):
        module.init(jax.random.key(0), queries=2, keys=2, offset=0, bidirectional=True)
