"""Routers: the papers' worked figures, and slots against a queue written out."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.nn import moe

G, T, D, E = 3, 24, 6, 4


def normal(*shape):
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def choices(router, x, tokens=None, *, key=None):
    """What a router's tokens choose, with the parameters of key 0."""

    def choose(router, x, tokens):
        return router.choose(x, tokens, deterministic=key is None)

    @jax.jit
    def run(x, tokens):
        rngs = {} if key is None else {"dropout": jax.random.key(key)}
        params = router.init({"params": jax.random.key(0), **rngs}, x, tokens, method=choose)
        return router.apply(params, x, tokens, method=choose, rngs=rngs)

    return jax.device_get(run(x, tokens))


def slots_of(router, x, *, capacity):
    """The slots that a router fills with the parameters of key 0, and these parameters."""

    @jax.jit
    def run(x):
        call = {"capacity": capacity, "deterministic": True}
        params = router.init(jax.random.key(0), x, None, **call)
        return router.apply(params, x, None, **call), nn.unbox(params)["params"]

    return jax.device_get(run(x))


@pytest.mark.parametrize(
    ("load", "probability", "expected"),
    [
        ([0.40, 0.30, 0.30], [0.384, 0.297, 0.319], 0.3384),
        ([0.80, 0.10, 0.10], [0.663, 0.179, 0.158], 0.5641),
        ([0.25] * 4, [0.25] * 4, 0.25),  # equal loads: the least there is, 1 / E
    ],
)
def test_load_balance_is_the_worked_example_times_the_number_of_experts(
    load, probability, expected
):
    found = jax.jit(moe.load_balance)(np.float32([load]), np.float32([probability]))
    np.testing.assert_allclose(found, len(load) * expected, rtol=1e-6)


def test_load_balance_is_the_mean_over_groups_and_pushes_probabilities_from_the_loaded():
    load = jnp.array([[1.0, 0.0], [0.5, 0.5]])
    probability = jnp.array([[0.8, 0.2], [0.9, 0.1]])
    balance = jax.jit(jax.value_and_grad(lambda p: moe.load_balance(load, p)))
    value, gradient = balance(probability)
    np.testing.assert_allclose(value, (2 * 0.8 + 2 * 0.5) / 2, rtol=1e-6)
    np.testing.assert_allclose(gradient, load, rtol=1e-6)  # E * f / G, with E = G = 2


def test_z_loss_is_the_mean_square_of_log_z():
    logits = np.log(np.float32([[[1.0, 3.0], [0.5, 0.5]]]))
    np.testing.assert_allclose(jax.jit(moe.z_loss)(logits), np.log(4.0) ** 2 / 2, rtol=1e-5)


@pytest.mark.parametrize("capacity", [1, 3, T])
@pytest.mark.parametrize("router", [moe.SwitchRouter, moe.Top2Router])
def test_slots_are_filled_as_by_a_queue(router, capacity):
    router = router(experts=E)
    x = normal(G, T, D)
    choice = choices(router, x)
    slots, _ = slots_of(router, x, capacity=capacity)
    token, gate = np.full((G, E, capacity), T), np.zeros((G, E, capacity), np.float32)
    taken, asked = np.zeros((G, E), int), np.zeros(E)
    for g in range(G):
        for k in range(choice.expert.shape[-1]):
            for t in range(T):
                e = choice.expert[g, t, k]
                asked[e] += 1
                if taken[g, e] < capacity:
                    token[g, e, taken[g, e]] = t
                    gate[g, e, taken[g, e]] = choice.gate[g, t, k]
                    taken[g, e] += 1
    np.testing.assert_array_equal(slots.token, token)
    np.testing.assert_array_equal(slots.gate, gate)
    np.testing.assert_allclose(slots.load, asked / asked.sum(), rtol=1e-6)
    np.testing.assert_allclose(slots.dropped, 1 - taken.sum() / asked.sum(), atol=1e-6)


def test_switch_chooses_the_likeliest_and_returns_its_probability():
    router = moe.SwitchRouter(experts=E)
    x = normal(G, T, D)
    _, params = slots_of(router, x, capacity=1)
    probability = np.asarray(jax.nn.softmax(x @ params["kernel"]))
    choice = choices(router, x)
    np.testing.assert_array_equal(choice.expert[..., 0], probability.argmax(-1))
    np.testing.assert_allclose(choice.gate[..., 0], probability.max(-1), rtol=1e-6)
    share = np.stack([(choice.expert[..., 0] == e).mean(1) for e in range(E)], -1)
    balance = E * (share * probability.mean(1)).sum(-1).mean()
    np.testing.assert_allclose(choice.balance, balance, rtol=1e-5)


def test_top_2_adds_up_to_one_and_drops_the_second_as_often_as_it_is_small():
    router = moe.Top2Router(experts=E, kernel_init=nn.initializers.normal(1.0))
    x = normal(20, 200, D)
    calm, training = choices(router, x), choices(router, x, key=3)
    np.testing.assert_allclose(calm.gate.sum(-1), 1.0, rtol=1e-6)
    assert np.all(calm.gate[..., 0] >= calm.gate[..., 1])
    assert np.all(calm.expert[..., 0] != calm.expert[..., 1])
    np.testing.assert_array_equal(training.expert[..., 0], calm.expert[..., 0])
    kept = training.expert[..., 1] < E
    np.testing.assert_array_equal(training.expert[..., 1][kept], calm.expert[..., 1][kept])
    chance = np.minimum(1.0, 2 * np.asarray(calm.gate[..., 1]))
    # Four standard deviations of the number that is kept.
    noise = 4 * np.sqrt((chance * (1 - chance)).sum())
    assert abs(kept.sum() - chance.sum()) < noise
    assert noise < 0.1 * kept.size


def test_top_k_has_a_softmax_over_its_choices_and_balances_all_of_them():
    router, x = moe.TopKRouter(experts=E, chosen=3), normal(G, T, D)
    found, trained = choices(router, x), choices(router, x, key=1)
    jax.tree.map(np.testing.assert_array_equal, found, trained)
    _, params = slots_of(router, x, capacity=T)
    probability = jax.device_get(nn.softmax(x @ params["kernel"]))
    ranked = np.argsort(-probability, axis=-1)[..., :3]
    np.testing.assert_array_equal(found.expert, ranked)
    gate = np.take_along_axis(probability, ranked, axis=-1)
    np.testing.assert_allclose(found.gate, gate / gate.sum(-1, keepdims=True), rtol=1e-5)
    share = np.stack([np.mean(ranked == n, axis=(1, 2)) for n in range(E)], axis=-1)
    balance = E * np.mean(np.sum(share * np.mean(probability, axis=1), axis=-1))
    np.testing.assert_allclose(found.balance, balance, rtol=1e-5)


def test_the_router_computes_in_float32_what_it_gets_in_bfloat16():
    router = moe.SwitchRouter(experts=E)
    x = normal(G, T, D).astype(jnp.bfloat16)
    low, high = choices(router, x), choices(router, x.astype(np.float32))
    assert low.gate.dtype == jnp.float32
    np.testing.assert_array_equal(low.gate, high.gate)


def test_jitter_multiplies_the_input_in_training_alone():
    router = moe.SwitchRouter(experts=2, jitter=0.1, kernel_init=nn.initializers.ones)
    x = np.full((1, 500, 1), 2.0, np.float32)

    def logits(*, key=None):
        rngs = {} if key is None else {"dropout": jax.random.key(key)}
        params = {"params": {"kernel": np.ones((1, 2), np.float32)}}
        settings = {"deterministic": key is None, "rngs": rngs, "method": "logits"}
        return jax.jit(functools.partial(router.apply, **settings))(params, x)

    np.testing.assert_array_equal(logits(), 2.0)
    noise = np.asarray(logits(key=1))[..., 0] / 2
    assert 0.9 <= noise.min() < 0.92
    assert 1.08 < noise.max() <= 1.1
    assert np.any(noise != np.asarray(logits(key=2))[..., 0] / 2)


def test_hash_goes_by_the_id_and_spreads_ids():
    router = moe.HashRouter(experts=E)
    tokens = np.arange(4000, dtype=np.int32).reshape(4, 1000)
    x = np.zeros((4, 1000, D), np.float32)
    expert = np.asarray(choices(router, x, tokens).expert)[..., 0]
    moved = np.asarray(choices(router, x, tokens[::-1]).expert)[..., 0]
    np.testing.assert_array_equal(moved, expert[::-1])
    # Five standard deviations of a binomial of 4,000 draws with chance 1/4.
    assert np.all(np.abs(np.bincount(expert.ravel(), minlength=E) - 1000) < 5 * 27.4)
    pairs = np.bincount(E * expert[:, :-1].ravel() + expert[:, 1:].ravel(), minlength=E * E)
    assert pairs.min() > 100  # of 250: neighbours in the vocabulary do not go together
    with pytest.raises(ValueError, match="needs the token ids"):
        choices(router, x)


def test_random_draws_anew_in_training_alone():
    router = moe.RandomRouter(experts=E)
    x = np.zeros((2, 500, D), np.float32)
    first, second, calm = (choices(router, x, key=key).expert for key in (1, 2, None))
    assert np.mean(first == second) < 0.5
    np.testing.assert_array_equal(calm, choices(router, x).expert)
    assert np.all(np.bincount(np.ravel(calm), minlength=E) > 150)  # of 250 on average


def test_expert_choice_takes_the_likeliest_tokens_of_each_expert():
    router, capacity = moe.ExpertChoiceRouter(experts=E), 5
    x = normal(G, T, D)
    slots, params = slots_of(router, x, capacity=capacity)
    probability = np.asarray(jax.nn.softmax(x @ params["kernel"]))
    for g in range(G):
        for e in range(E):
            best = np.argsort(-probability[g, :, e])[:capacity]
            assert set(np.asarray(slots.token[g, e])) == set(best)
            np.testing.assert_allclose(slots.gate[g, e], probability[g, best, e], rtol=1e-6)
    free = np.mean([T - len(np.unique(slots.token[g])) for g in range(G)]) / T
    np.testing.assert_allclose(slots.dropped, free, atol=1e-6)
    with pytest.raises(ValueError, match=r"model\.router='expert_choice' needs slots"):
        choices(router, x)
