"""Verdicts on the claims of a study: intervals of paired differences, margins."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from t5x_like.research.studies import Learned, verdicts
from t5x_like.research.studies.verdicts import Looks
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


def judged(deep, shallow, *, looks=None, **settings):
    study = toy_study.get_study()
    claims = (dataclasses.replace(study.claims[0], **settings),)
    values = {"deep": {"loss": deep}, "shallow": {"loss": shallow}}
    return verdicts.judge(dataclasses.replace(study, claims=claims), values, looks=looks)[0]


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


def test_arms_within_a_margin_are_equal_and_no_claim_has_both_kinds_of_margin():
    low, near = {0: 1.0, 1: 1.1, 2: 0.9}, {0: 1.1, 1: 0.9, 2: 1.0}
    assert judged(low, near, margin=1.0).verdict == verdicts.EQUAL
    assert judged(low, near, margin=0.1).verdict == verdicts.OPEN
    better = {0: 1.2, 1: 1.3, 2: 1.1}  # by 0.2 with each seed
    assert judged(low, better, margin=1.0).verdict == verdicts.EQUAL
    assert judged(low, better, margin=0.1).verdict == verdicts.HELD
    with pytest.raises(ValueError, match=r"within=1 and margin=1: set one of them"):
        judged(low, near, within=1.0, margin=1.0)


LOOKS = Looks(first=3, most=10)


def stops(differences):
    """At which look each of some studies stops, [N, seeds] -> [N], 0 for never; and its sign."""
    sizes = np.arange(1, differences.shape[1] + 1)
    means = differences.cumsum(axis=1) / sizes
    with np.errstate(invalid="ignore", divide="ignore"):
        variances = ((differences**2).cumsum(axis=1) - sizes * means**2) / (sizes - 1)
        t = means / np.sqrt(variances / sizes)
    bounds = np.array([LOOKS.errors(int(size), level=0.95) for size in sizes])
    beyond = np.abs(t) > bounds
    first = np.where(beyond.any(axis=1), beyond.argmax(axis=1), -1)
    return first + 1, np.where(
        first >= 0, np.sign(np.take_along_axis(t, first[:, None], 1)[:, 0]), 0
    )


def test_looking_after_every_seed_finds_an_effect_that_is_not_there_in_5_of_100_studies():
    differences = np.random.default_rng(1).normal(size=(40_000, 10))
    share = (stops(differences)[0] > 0).mean()
    assert share == pytest.approx(
        0.05, abs=0.004
    )  # standard deviation 0.0011, of the bounds 0.0005
    # With the interval of fixed seeds it is more than twice as many.
    t = [stats.ttest_1samp(differences[:, :size], 0, axis=1).pvalue < 0.05 for size in range(3, 11)]
    assert np.any(t, axis=0).mean() > 0.11


def test_an_effect_is_found_with_few_seeds_and_in_its_direction():
    differences = np.random.default_rng(2).normal(2.0, size=(4000, 10))
    looks, signs = stops(differences)
    assert (looks > 0).mean() > 0.99
    assert (signs[looks > 0] > 0).mean() > 0.999
    assert np.median(looks) <= 5


def test_intervals_of_all_looks_cover_the_difference_together():
    differences = np.random.default_rng(3).normal(0.7, size=(2000, 10))
    covered = [
        all(
            low <= 0.7 <= high
            for size in range(3, 11)
            for low, high in [verdicts.t_interval(own[:size].tolist(), looks=LOOKS)]
        )
        for own in differences
    ]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.02)


def test_a_decided_claim_keeps_its_verdict_when_others_need_more_seeds():
    shallow = dict.fromkeys(range(6), 2.0)
    clear = {0: 1.0, 1: 1.01, 2: 0.99, 3: 1.0}
    before = judged(clear, shallow, looks=LOOKS)
    after = judged({**clear, 4: 9.0, 5: 9.0}, shallow, looks=LOOKS)
    assert before == after
    assert (before.verdict, before.seeds) == (verdicts.HELD, 3)
    assert judged({0: 1.0, 1: 1.0}, shallow, looks=LOOKS).verdict == verdicts.OPEN


def test_the_design_cannot_change_after_the_first_look(tmp_path):
    assert verdicts.stored(tmp_path / "runs") is None
    verdicts.begin(tmp_path / "runs", LOOKS)
    assert verdicts.begin(tmp_path / "runs", LOOKS) == verdicts.stored(tmp_path / "runs") == LOOKS
    with pytest.raises(ValueError, match=r"looks after 3 to 10 seeds, which cannot change"):
        verdicts.begin(tmp_path / "runs", Looks(3, 20))
    for first, most in ((1, 10), (5, 4)):
        with pytest.raises(ValueError, match="needs 2 or more at first"):
            Looks(first, most)
    with pytest.raises(ValueError, match="11 seeds are more than the 10"):
        LOOKS.errors(11, level=0.95)


def test_an_arm_that_is_no_better_than_a_constant_has_not_learned():
    def checked(values, than):
        learned = Learned(arm="shallow", measure="loss", than=than, what="the loss of frequencies")
        study = toy_study.get_study(learned=(learned,))
        return verdicts.checks(study, {"shallow": {"loss": values}, "deep": {"loss": {}}})[0]

    values = {0: 1.0, 1: 1.2, 2: 1.1}
    assert checked(values, 2.0).passed  # a smaller loss is better
    assert not checked(values, 1.0).passed
    assert not checked(values, 1.2).passed  # the interval reaches beyond it
    assert checked({0: 1.0}, 1.2).passed
    assert not checked({}, 1.2).passed
