"""Metrics: sums first, division last; undefined and infinite values."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.training import metrics


def sums(total, count):
    return {"cross_entropy": (jnp.float32(total), jnp.float32(count))}


def test_merging_weighs_steps_by_their_tokens():
    steps = [metrics.from_sums(sums(6.0, 2.0)), metrics.from_sums(sums(6.0, 6.0))]
    values = metrics.compute(metrics.merge(steps))
    assert values["cross_entropy"] == 1.5
    # Of the merged mean, not the mean of exp(3) and exp(1).
    assert values["perplexity"] == pytest.approx(np.exp(1.5), rel=1e-6)


def test_merging_on_the_host_and_on_the_device_agree():
    steps = [metrics.from_sums(sums(x, x + 1)) for x in range(3)]
    on_device = metrics.compute(jax.jit(metrics.merge)(steps))
    assert metrics.compute(metrics.merge(jax.device_get(steps))) == on_device


def test_values_average_over_steps():
    steps = [{"grad_norm": metrics.from_value(jnp.float32(x))} for x in (1.0, 2.0, 6.0)]
    assert metrics.compute(metrics.merge(steps)) == {"grad_norm": 3.0}


def test_a_metric_that_counted_nothing_is_left_out_but_not_the_loss():
    none = (jnp.float32(0.0), jnp.float32(0.0))
    some = (jnp.float32(3.0), jnp.float32(2.0))
    values = metrics.compute(
        metrics.from_sums({**sums(0.0, 0.0), "loss": none, "a/accuracy": none, "b/accuracy": some})
    )
    assert values.keys() == {"loss", "b/accuracy"}
    assert np.isnan(values["loss"])
    assert values["b/accuracy"] == 1.5


def test_a_metric_whose_count_is_nan_is_nan():
    assert np.isnan(metrics.compute(metrics.from_sums(sums(1.0, np.nan)))["cross_entropy"])


def test_a_perplexity_beyond_floats_is_infinite_without_a_warning():
    assert metrics.compute(metrics.from_sums(sums(1e4, 1.0)))["perplexity"] == np.inf


def test_merging_refuses_nothing_and_other_names():
    with pytest.raises(ValueError, match="no metrics"):
        metrics.merge([])
    with pytest.raises(ValueError, match=r"\['loss'\]"):
        metrics.merge([metrics.from_sums(sums(1, 1)), {"loss": metrics.from_value(jnp.ones(()))}])


def routing(load, dropped, *, tokens):
    """The sums of a step with two sparse layers of three experts, over some tokens."""
    pairs = {"expert_load": (np.array(load) * tokens, tokens)}
    pairs["tokens_dropped"] = (np.array(dropped) * tokens, tokens)
    return metrics.from_sums(jax.tree.map(jnp.float32, pairs))


def test_the_entropy_of_a_load_is_that_of_the_merged_load():
    # Each step sends all its tokens to one expert of the first layer; of eight tokens two go to
    # the first expert and six to the second.
    steps = [
        routing([[1, 0, 0], [1 / 3] * 3], [0.5, 0], tokens=2),
        routing([[0, 1, 0], [1 / 3] * 3], [0.1, 0], tokens=6),
    ]
    values, tables = metrics.split(metrics.compute(metrics.merge(steps)))
    assert values == pytest.approx(
        {
            "expert_load/layer_0/entropy": np.log(4) - 0.75 * np.log(3),
            "expert_load/layer_0/busiest": 0.75,
            "expert_load/layer_0/idlest": 0,
            "expert_load/layer_1/entropy": np.log(3),
            "expert_load/layer_1/busiest": 1 / 3,
            "expert_load/layer_1/idlest": 1 / 3,
            "tokens_dropped": 0.1,
            "tokens_dropped/layer_0": 0.2,
            "tokens_dropped/layer_1": 0,
        },
        rel=1e-6,
    )
    assert tables.keys() == {"expert_load"}
    np.testing.assert_allclose(tables["expert_load"], [[0.25, 0.75, 0], [1 / 3] * 3], rtol=1e-6)


def test_a_load_of_no_tokens_is_left_out():
    assert metrics.compute(routing([[0, 0, 0]], [0], tokens=0)) == {}


def test_one_bad_step_is_found_after_merging():
    steps = [{"loss": metrics.from_value(jnp.float32(x))} for x in (1.0, np.nan, 1.0)]
    values = metrics.compute(metrics.merge(steps))
    with pytest.raises(FloatingPointError, match=r"loss is nan at or shortly before step 30"):
        metrics.require_finite(values, step=30)
    metrics.require_finite({"loss": 1.0, "perplexity": np.inf, "accuracy": np.nan}, step=30)


def test_throughput():
    rates = metrics.throughput(
        steps=10,
        seconds=5.0,
        tokens_per_step=100,
        examples_per_step=4,
        steps_left=40,
        flops_per_step=3e9,
        peak_flops=12e9,
    )
    assert rates == {
        "steps_per_second": 2.0,
        "tokens_per_second": 200.0,
        "examples_per_second": 8.0,
        "seconds_left": 20.0,
        "model_flops_utilization": 0.5,
    }


def test_utilization_is_left_out_where_the_peak_is_unknown():
    rates = metrics.throughput(
        steps=1, seconds=1.0, tokens_per_step=1, examples_per_step=1, steps_left=0, flops_per_step=1
    )
    assert "model_flops_utilization" not in rates


def test_training_needs_no_tensorflow():
    modules = "metrics, schedules, optimizers, step, flops, loop"
    code = (
        f"from t5x_like import losses\nfrom t5x_like.training import {modules}\n"
        "import sys\n"
        "assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_most_frequent_class_is_that_of_all_batches_together():
    """Two batches whose most frequent classes differ: 3 + 1 of class 0, 1 + 4 of class 1."""
    batches = [
        metrics.from_sums({"pairs/constant_accuracy": (np.float32(counts), np.float32(total))})
        for counts, total in (([3, 1], 4), ([1, 4], 5))
    ]
    found = metrics.compute(metrics.merge(batches))
    assert found == {"pairs/constant_accuracy": pytest.approx(5 / 9)}
