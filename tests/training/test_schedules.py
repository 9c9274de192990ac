"""Schedules: the published values, the ends of warmup and decay, and bad settings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.training import schedules


def test_rsqrt_is_the_schedule_of_t5():
    schedule = schedules.build("rsqrt", learning_rate=1.0, warmup_steps=10_000)
    steps = jnp.asarray([0, 5_000, 10_000, 40_000, 1_000_000])
    # One float32 rounding of a square root and a division.
    expected = [0.01, 0.01, 0.01, 0.005, 0.001]
    np.testing.assert_allclose(jax.vmap(schedule)(steps), expected, rtol=1e-6)


def test_warmup_rsqrt_is_equation_3_of_the_transformer():
    schedule = schedules.build("warmup_rsqrt", learning_rate=512**-0.5, warmup_steps=4000)
    numbers = np.array([1, 2, 2000, 4000, 16_000, 100_000])  # the paper counts from 1
    expected = 512**-0.5 * np.minimum(numbers**-0.5, numbers * 4000**-1.5)
    found = [float(schedule(number - 1)) for number in numbers]
    # Two float32 roundings of powers.
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert max(found) == found[3] == pytest.approx(6.99e-4, rel=1e-3)


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
def test_warmup_rises_linearly_to_the_peak(name):
    schedule = schedules.build(name, learning_rate=0.4, warmup_steps=4, decay_steps=8)
    values = [float(schedule(step)) for step in range(5)]
    np.testing.assert_allclose(values, [0.0, 0.1, 0.2, 0.3, 0.4], rtol=1e-6)


def test_the_warmup_may_begin_above_0():
    settings = {"learning_rate": 0.4, "warmup_steps": 4, "decay_steps": 8}
    schedule = schedules.build("constant", start_learning_rate=0.04, **settings)
    found = [float(schedule(step)) for step in (0, 2, 4, 9)]
    np.testing.assert_allclose(found, [0.04, 0.22, 0.4, 0.4], rtol=1e-6)
    with pytest.raises(ValueError, match=r"start_learning_rate is 0.5; it must lie between 0 and"):
        schedules.build("constant", start_learning_rate=0.5, **settings)


@pytest.mark.parametrize("warmup_steps", [0, 4])
@pytest.mark.parametrize(("name", "middle"), [("constant", 0.4), ("linear", 0.3), ("cosine", 0.3)])
def test_decay_ends_at_its_step_and_stays(name, middle, warmup_steps):
    schedule = schedules.build(
        name,
        learning_rate=0.4,
        warmup_steps=warmup_steps,
        decay_steps=10 + warmup_steps,
        end_learning_rate=0.2,
    )
    end = 0.4 if name == "constant" else 0.2
    values = [float(schedule(warmup_steps + step)) for step in (0, 5, 10, 1000)]
    np.testing.assert_allclose(values, [0.4, middle, end, end], rtol=1e-6)


@pytest.mark.parametrize("name", sorted(schedules.SCHEDULES))
def test_schedules_take_traced_steps(name):
    schedule = schedules.build(name, learning_rate=0.1, warmup_steps=2, decay_steps=5)
    value = jax.jit(schedule)(jnp.int32(3))
    np.testing.assert_allclose(value, schedule(3), rtol=1e-6)
    assert jnp.shape(value) == ()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "cosin"}, r"optimizer.schedule='cosin'.*Did you mean 'cosine'\?.*linear"),
        ({"learning_rate": 0.0}, "optimizer.learning_rate is 0"),
        ({"learning_rate": float("nan")}, "optimizer.learning_rate is nan"),
        ({"warmup_steps": -1}, "optimizer.warmup_steps is -1"),
        ({"end_learning_rate": 2.0}, "optimizer.end_learning_rate is 2"),
        ({"decay_steps": None}, "optimizer.decay_steps is None"),
        ({"warmup_steps": 9, "decay_steps": 9}, "optimizer.decay_steps is 9"),
        ({"name": "rsqrt", "warmup_steps": 0}, "optimizer.warmup_steps is 0"),
        ({"name": "warmup_rsqrt", "warmup_steps": 0}, "schedule 'warmup_rsqrt' divides"),
        ({"name": "linear_rsqrt", "warmup_steps": 0}, "schedule 'linear_rsqrt' divides"),
        ({"schedule_offset": -1}, "optimizer.schedule_offset is -1"),
    ],
)
def test_bad_settings_are_named(settings, message):
    good = {"name": "linear", "learning_rate": 1.0, "decay_steps": 10}
    with pytest.raises(ValueError, match=message):
        schedules.build(**(good | settings))
