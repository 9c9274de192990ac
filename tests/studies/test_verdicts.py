"""Verdicts on the claims of a study: intervals of paired differences, margins."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from t5x_like.studies import verdicts
from tests.programs import toy_study


def test_the_t_interval_is_that_of_a_paired_t_test():
    draw = np.random.default_rng(0)
    first, second = draw.normal(size=(2, 5))
    expected = stats.ttest_rel(first, second).confidence_interval(0.95)
    found = verdicts.t_interval(list(first - second))
    assert found == pytest.approx((expected.low, expected.high))
    assert verdicts.t_interval([1.0]) == (-math.inf, math.inf)
    # Two seeds: 12.706 standard errors, from tables of Student's t.
    assert verdicts.t_interval([1.0, 3.0]) == pytest.approx((2 - 12.706, 2 + 12.706), abs=1e-3)


def judged(deep, shallow, **settings):
    study = toy_study.get_study()
    claims = (dataclasses.replace(study.claims[0], **settings),)
    values = {"deep": {"loss": deep}, "shallow": {"loss": shallow}}
    return verdicts.judge(dataclasses.replace(study, claims=claims), values)[0]


def test_verdicts():
    low, high = {0: 1.0, 1: 1.1, 2: 0.9}, {0: 3.0, 1: 3.2, 2: 2.9}
    assert judged(low, high).verdict == verdicts.HELD  # a smaller loss is better
    assert judged(high, low).verdict == verdicts.NOT_HELD
    assert judged(low, {0: 1.1, 1: 0.9, 2: 1.0}).verdict == verdicts.OPEN
    assert judged(low, high, within=5.0).verdict == verdicts.HELD
    assert judged(low, high, within=0.5).verdict == verdicts.NOT_HELD
    assert judged(low, {0: 1.3, 1: 0.8, 2: 1.6}, within=0.5).verdict == verdicts.OPEN
    one = judged({0: 1.0, 3: 9.0}, {0: 2.0, 4: 9.0})
    assert (one.verdict, one.difference, one.seeds) == (verdicts.OPEN, -1.0, 1)
    assert judged({}, high).verdict == ""


def test_pairing_removes_what_seeds_have_in_common():
    deep = {0: 1.0, 1: 5.0, 2: 9.0}
    shallow = {seed: value + 0.1 + 0.001 * seed for seed, value in deep.items()}
    assert judged(deep, shallow).verdict == verdicts.HELD
