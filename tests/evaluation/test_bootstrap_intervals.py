"""Bootstrap intervals: their coverage, their seed, groups, and numbers that are not defined."""

import math

import numpy as np
import pytest
from scipy import stats

from t5x_like.evaluation.metrics import METRICS, metric
from t5x_like.evaluation.metrics.metric import Statistics, mean, means
from t5x_like.experiment.reporting import Estimate


def test_the_interval_of_a_mean_is_near_that_of_the_normal_distribution():
    values = np.random.default_rng(1).normal(3.0, 2.0, size=400)
    found = Statistics(values[:, None], means("x")).estimates()["x"]
    error = values.std() / math.sqrt(400)
    assert found == pytest.approx(values.mean())
    assert found.interval == pytest.approx(stats.norm.interval(0.95, found, error), abs=0.02)


def test_intervals_contain_the_truth_as_often_as_they_promise(monkeypatch):
    monkeypatch.setattr(metric, "RESAMPLES", 200)
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        values = random.random([100, 1]) < 0.7
        low, high = Statistics(values.astype(float), means("x")).estimates()["x"].interval
        inside += low <= 0.7 <= high
    # Of 200 intervals of 95%: 190, with a standard deviation of 3.
    assert 178 <= inside <= 199


def test_a_resample_is_measured_as_a_whole():
    targets = np.random.default_rng(0).normal(size=60)
    found = METRICS["pearson"].statistics(targets, targets + 1).estimates()["pearson"]
    assert found.interval == pytest.approx((1.0, 1.0))


def test_the_seed_is_fixed():
    statistics = Statistics(np.arange(50.0)[:, None], means("x"))
    first, again = statistics.estimates()["x"], statistics.estimates()["x"]
    assert first.interval == again.interval
    assert len(first.samples) == metric.RESAMPLES


def test_groups_are_drawn_whole():
    # All answers of a question are right or wrong together: the interval is that of 10 questions.
    right = [group < 7 for group in range(10) for _ in range(20)]
    targets = [{"group": n // 20, "value": 1} for n in range(200)]
    found = METRICS["multirc"].statistics(targets, [int(one) for one in right]).estimates()
    assert found["multirc_exact_match"] == pytest.approx(0.7)
    low, high = found["multirc_exact_match"].interval
    assert low <= 0.4
    assert high == pytest.approx(1.0, abs=0.1)


def test_what_a_resample_does_not_define_does_not_count():
    found = METRICS["pearson"].statistics([1, 1, 2], [1, 2, 3]).estimates()["pearson"]
    assert np.isnan(found.samples).any()
    assert not np.isnan(found.interval).any()
    one = METRICS["pearson"].statistics([1], [1]).estimates()["pearson"]
    assert np.isnan([one, *one.interval]).all()


def test_a_mean_of_estimates_has_an_interval_and_of_others_none():
    numbers = [Estimate(1.0, np.array([0.0, 2.0])), Estimate(2.0, np.array([2.0, 2.0]))]
    found = mean(numbers)
    assert found == 1.5
    assert found.samples.tolist() == [1.0, 2.0]
    assert not isinstance(mean([*numbers, 3.0]), Estimate)
