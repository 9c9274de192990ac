"""Rewards, advantages and losses of PPO: values worked by hand, and the identities behind them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.systems import policy_optimization as pg

NAN = np.nan
MASK = np.float32([[1, 1, 1], [1, 1, 0]])
advantages = jax.jit(pg.generalized_advantages, static_argnames=("discount", "decay"))
whiten = jax.jit(pg.whiten, static_argnames="shift")


def test_the_mask_of_lengths():
    np.testing.assert_array_equal(pg.mask_of(jnp.array([3, 2, 0]), 3), [*MASK, [0, 0, 0]])


def test_each_token_pays_for_its_distance_and_the_last_one_gets_the_score():
    log_probs = np.float32([[-1, -2, -3], [-1, -1, NAN]])
    reference = np.float32([[-1, -1, -5], [-3, -2, NAN]])
    found = pg.kl_rewards(log_probs, reference, jnp.array([10, -4]), MASK, beta=0.5)
    assert found.dtype == jnp.float32  # scores that are integers do not make rewards integers
    np.testing.assert_allclose(found, [[0, 0.5, 9], [-1, -4.5, 0]])


def test_advantages_by_hand_and_nothing_leaks_from_padding():
    rewards = np.float32([[0, 0, 1], [0.5, -1, NAN]])
    values = np.float32([[0.5, 0.2, 0.4], [1, 2, NAN]])
    found, returns = advantages(rewards, values, MASK)
    # Deltas -0.3, 0.2, 0.6; and 0.5 + 2 - 1 = 1.5, -1 - 2 = -3.
    expected = [[-0.3 + 0.95 * 0.77, 0.2 + 0.95 * 0.6, 0.6], [1.5 - 0.95 * 3, -3, 0]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(returns, np.nan_to_num(values) + expected, rtol=1e-6)
    discounted, _ = advantages(rewards, values, MASK, discount=0.5, decay=0.5)
    # Deltas 0.5 * 0.2 - 0.5 = -0.4, 0.5 * 0.4 - 0.2 = 0, 0.6; and 0.5 + 1 - 1 = 0.5, -3.
    expected = [[-0.4 + 0.25 * 0.15, 0.15, 0.6], [0.5 - 0.75, -3, 0]]
    np.testing.assert_allclose(discounted, expected, rtol=1e-6, atol=1e-7)


def test_the_two_ends_of_the_decay():
    rewards = np.float32([[1, 2, 4], [8, 16, 0]])
    values = np.float32([[3, 5, 7], [9, 11, 0]])
    _, returns = advantages(rewards, values, MASK, decay=1.0)
    np.testing.assert_allclose(returns, [[7, 6, 4], [24, 16, 0]], rtol=1e-6)
    _, returns = advantages(rewards, values, MASK, decay=0.0)
    np.testing.assert_allclose(returns, [[6, 9, 4], [19, 16, 0]], rtol=1e-6)


def test_whitening_reads_real_tokens_alone():
    values = np.float32([[1, 2, 3], [4, 10, 1e6]])
    real = values[MASK > 0]
    found = whiten(values, MASK)
    np.testing.assert_allclose(np.asarray(found)[MASK > 0], (real - real.mean()) / real.std(), 1e-5)
    assert found[1, 2] == 0
    kept = np.asarray(whiten(values, MASK, shift=False))
    np.testing.assert_allclose(kept[MASK > 0].mean(), real.mean(), rtol=1e-6)
    np.testing.assert_allclose(kept[MASK > 0].std(), 1, rtol=1e-5)
    assert kept[1, 2] == 0


def test_the_clipped_policy_loss_by_hand():
    old = np.zeros((1, 6), np.float32)
    ratio = np.float32([[1.3, 0.7, 1.3, 0.7, 1.1, 5]])
    advantage = np.float32([[1, 1, -1, -1, 2, NAN]])
    mask = np.float32([[1, 1, 1, 1, 1, 0]])

    @jax.value_and_grad
    def loss(log_probs):
        total, number, metrics = pg.clipped_policy(
            log_probs, old, jnp.nan_to_num(advantage), mask, clip=0.2
        )
        assert metrics.keys() == {"policy", "ratio", "clipped", "approximate_kl"}
        return total / number

    found, gradient = jax.jit(loss)(np.log(ratio))
    # -min(r A, clip(r) A): of the first and the fourth the clipped one, which has no gradient.
    np.testing.assert_allclose(found, (-1.2 - 0.7 + 1.3 + 0.8 - 2.2) / 5, rtol=1e-6)
    expected = np.float32([[0, -0.7, 1.3, 0, -2.2, 0]]) / 5
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-7)
    shares = pg.clipped_policy(np.log(ratio), old, jnp.nan_to_num(advantage), mask, clip=0.2)[2]
    assert shares["clipped"] == (2, 5)
    np.testing.assert_allclose(shares["ratio"][0], 1.3 + 0.7 + 1.3 + 0.7 + 1.1, rtol=1e-6)


def test_the_clipped_value_loss_by_hand():
    old = np.float32([[0, 0, 0, 0]])
    values, returns = np.float32([[0.5, 0.5, 0.1, 9]]), np.float32([[1, -1, 1, 0]])
    mask = np.float32([[1, 1, 1, 0]])

    @jax.value_and_grad
    def loss(values):
        total, number, _ = pg.clipped_value(values, old, returns, mask, clip=0.2)
        return total / number

    found, gradient = jax.jit(loss)(values)
    # Past the clip towards its return, past it away from it, within it.
    np.testing.assert_allclose(found, (0.8**2 + 1.5**2 + 0.9**2) / 2 / 3, rtol=1e-6)
    np.testing.assert_allclose(gradient, np.float32([[0, 1.5, -0.9, 0]]) / 3, rtol=1e-6)


def test_the_policy_gradient_identity_and_the_clipped_loss_where_it_begins():
    """Over all actions, weighted by their probability, as infinitely many samples would be."""
    logits, rewards = jnp.array([0.3, -1.0, 0.8, 0.1]), jnp.array([1.0, -2.0, 0.5, 3.0])
    p = jax.nn.softmax(logits)

    @jax.jit
    @jax.grad
    def expectation(logits):
        return jnp.sum(jax.nn.softmax(logits) * rewards)

    def by_samples(baseline):
        return jax.grad(lambda x: jnp.sum(p * (rewards - baseline) * jax.nn.log_softmax(x)))(logits)

    def clipped(logits):
        now, old = jax.nn.log_softmax(logits)[None], jnp.log(p)[None]
        one = jnp.ones((1, 1))
        parts = [
            p[a] * pg.clipped_policy(now[:, [a]], old[:, [a]], rewards[None, [a]], one, clip=0.2)[0]
            for a in range(4)
        ]
        return -sum(parts)

    expected = expectation(logits)
    for found in (by_samples(0.0), by_samples(1.7), jax.jit(jax.grad(clipped))(logits)):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("epsilon", [0.1, 0.2])
def test_the_clipped_objective_is_a_lower_bound_of_the_one_it_clips(epsilon):
    generator = np.random.default_rng(0)
    change, advantage = generator.normal(size=(2, 5, 7)).astype(np.float32)
    mask = np.ones((5, 7), np.float32)
    clipped = pg.clipped_policy(change, np.zeros_like(change), advantage, mask, clip=epsilon)[0]
    assert -clipped < np.sum(np.exp(change) * advantage)
