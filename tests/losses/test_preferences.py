"""Losses of comparisons: by hand, as the sum of their pairs, and what may be added to a reward."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.losses import preferences
from t5x_like.systems import dpo


def loss_of(rewards, ranks):
    total, weight, metrics = preferences.ranking(jnp.array(rewards), jnp.array(ranks))
    return float(total), float(weight), {k: (float(a), float(b)) for k, (a, b) in metrics.items()}


def cost(margin):
    return math.log(1 + math.exp(-margin))


def test_a_pair_and_a_triple_by_hand():
    """Rewards 2 and 0.5, the second preferred; then 1, 3, 0 ranked 2, 1, 3."""
    total, weight, metrics = loss_of([[2.0, 0.5, 9.0], [1.0, 3.0, 0.0]], [[2, 1, 0], [2, 1, 3]])
    first = cost(-1.5)
    second = (cost(2.0) + cost(3.0) + cost(1.0)) / 3  # 3 - 1, 3 - 0, 1 - 0
    assert (total, weight) == (pytest.approx(first + second, rel=1e-6), 2)
    assert metrics["accuracy"] == (3, 4)
    assert metrics["margin"] == (pytest.approx(-1.5 + 6.0), 4)
    assert metrics["reward"] == (pytest.approx(6.5), 5)


def test_the_loss_of_ranked_responses_is_the_mean_of_their_pairs():
    random = np.random.default_rng(0)
    rewards = random.standard_normal(6).astype(np.float32)
    ranks = random.permutation(6) + 1
    whole = loss_of([rewards], [ranks])[0]
    pairs = [[i, j] for i, j in itertools.combinations(range(6), 2)]
    each = loss_of([rewards[pair] for pair in pairs], [ranks[pair] for pair in pairs])[0]
    assert whole == pytest.approx(each / math.comb(6, 2), rel=1e-6)


def test_a_constant_added_to_all_rewards_changes_nothing():
    rewards, ranks = jnp.array([[0.25, -1.5, 3.0]]), jnp.array([[3, 1, 2]])

    def total(rewards):
        return preferences.ranking(rewards, ranks)[0]

    assert total(rewards + 16.0) == total(rewards)  # exact in float32
    assert jnp.sum(jax.grad(total)(rewards)) == pytest.approx(0, abs=1e-6)


def test_ties_are_no_pairs_and_padding_no_prompt():
    tied = loss_of([[5.0, -3.0, 0.0]], [[1, 1, 2]])
    assert tied[0] == pytest.approx((cost(5.0) + cost(-3.0)) / 2, rel=1e-6)
    assert loss_of([[1.0, 2.0]], [[0, 0]])[:2] == (0, 0)
    assert loss_of([[1.0, 2.0]], [[1, 0]])[:2] == (0, 0)
    gradient = jax.grad(lambda r: preferences.ranking(r, jnp.array([[1, 0]]))[0])
    assert jnp.all(gradient(jnp.array([[1.0, jnp.inf]])) == 0)


def test_dpo_needs_a_divergence_with_weight():
    with pytest.raises(ValueError, match=r"loss\.beta=0 must be above 0"):
        dpo.loss(None, {}, {}, None, beta=0)
