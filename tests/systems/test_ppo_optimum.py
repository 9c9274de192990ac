"""PPO reaches what is known to be best: the closed-form optimum, and the shortest walks."""

import itertools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import config, partitioning, systems
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.losses import autoregressive
from t5x_like.systems import policy_optimization
from t5x_like.training import optimizers, step
from tests import toy_policies as toy

FILE = str(pathlib.Path(toy.__file__).resolve())
ADAM = {"name": "adamw", "schedule": "constant", "b2": 0.95, "epsilon": 1e-5}
ROWS = 512


def build(name, *, learning_rate, **loss):
    """The model side of a run: 512 episodes a step, in 8 minibatches, as in the paper."""
    made = config.defaults()
    made.system = f"{FILE}:{name}"
    made.model = systems.find(made.system).sizes["toy"]
    made.loss = loss
    made.data.batch_size = ROWS
    made.train.minibatches = 8
    made.optimizer = {
        **ADAM,
        "learning_rate": learning_rate,
        "frozen": ("reference",),
        "moving_average": {"average": "policy"},
        "moving_average_decay": 0.992,
    }
    made.mesh = {"data": 1, "fsdp": 1, "expert": 1, "model": 1}
    return model_side.build(of_config(made), devices=jax.devices()[:1])


def train(model, policy, prompts, *, steps, new):
    """The state after so many steps, and the metrics of each.

    Args:
        policy: parameters to begin with; None for random ones.
        prompts: step -> tokens [B, 1].
        new: the most tokens of a response.
    """
    now = model.initial_state()
    policy = now.params["policy"] if policy is None else policy
    copies = {name: jax.tree.map(jnp.copy, policy) for name in ("policy", "reference", "average")}
    now = now.replace(params={**now.params, **copies})
    found = []
    with partitioning.layout(model.mesh):
        for number in range(steps):
            tokens = np.asarray(prompts(number), np.int32)
            batch = {
                "decoder_input_tokens": tokens,
                "decoder_segment_ids": np.ones_like(tokens),
                "responses": np.zeros((len(tokens), new), np.int32),
            }
            now, metrics = model.train_step(now, model.put(batch))
            found.append(metrics)
    return now, [{k: float(v.compute()) for k, v in one.items()} for one in jax.device_get(found)]


@pytest.mark.slow
def test_the_policy_approaches_the_optimum_of_the_objective():
    """p*(y) proportional to p_reference(y) exp(r(y) / beta), over all 1,296 sequences."""
    beta = 0.5
    model = build(
        "SEQUENCES", learning_rate=2e-3, beta=beta, whiten_rewards=False, value_weight=0.5
    )
    sequences = np.array(list(itertools.product(range(toy.SYMBOLS), repeat=toy.LENGTH)), np.int32)
    rows = np.concatenate([np.zeros((len(sequences), 1), np.int32), sequences], axis=1)
    mask = np.ones(sequences.shape, np.float32)
    episodes = {"decoder_input_tokens": rows, "response_mask": mask}

    @jax.jit
    def probabilities(params):
        logits, _ = model.module.apply({"params": params}, episodes, method="act")
        scored = policy_optimization.log_probs(logits, episodes, temperature=1)
        return jnp.exp(jnp.sum(scored, axis=1))

    now, log = train(model, None, lambda _: np.zeros((ROWS, 1)), steps=300, new=toy.LENGTH)
    reference = probabilities({**now.params, "policy": now.params["reference"]})
    best = reference * np.exp(np.asarray(toy.reward_of(sequences)) / beta)
    best = best / best.sum()
    np.testing.assert_allclose(reference.sum(), 1, rtol=1e-5)

    def distance(found):
        return float(np.abs(found - best).sum() / 2)

    average = probabilities({**now.params, "policy": now.params["average"]})
    before, after = distance(reference), distance(probabilities(now.params))
    print(f"total variation: {before:.3f} -> {after:.3f}, of the average {distance(average):.3f}")
    assert before > 0.5
    # The noise of 512 episodes a step, at a constant learning rate; see the page of InstructGPT.
    assert after < 0.1
    assert distance(average) < 0.1
    objective = np.sum(
        best * (np.asarray(toy.reward_of(sequences)) - beta * np.log(best / reference))
    )
    last = np.mean([one["reward"] - beta * one["divergence"] for one in log[-20:]])
    # The largest value of the objective is beta log sum p_reference exp(r / beta).
    print(f"objective: {last:.3f} of at most {objective:.3f}")
    assert objective - 0.1 < last < objective + 0.05


def walks(generator, rows):
    """Random walks from random nodes, which end at the goal: rows of STEPS + 1 nodes, lengths."""
    nodes = np.zeros((rows, toy.STEPS + 1), np.int32)
    lengths = np.zeros(rows, int)
    for row in range(rows):
        here = generator.choice(toy.STARTS)
        walk = [here]
        while len(walk) <= toy.STEPS and here != toy.GOAL and toy.EDGES[here].any():
            here = generator.choice(np.flatnonzero(toy.EDGES[here]))
            walk.append(here)
        nodes[row, : len(walk)] = walk
        lengths[row] = len(walk)
    return nodes, lengths


@pytest.mark.slow
def test_random_walks_become_short_ones():
    """A policy that imitates random walks learns the shortest ways from their rewards alone."""
    model = build("WALKS", learning_rate=1e-3, beta=0.02, whiten_rewards=False, value_weight=0.5)
    gpt = model.module.make_policy()
    optimizer, schedule = optimizers.build(
        {**ADAM, "learning_rate": 3e-3}, axes=model.axes.params["policy"]
    )
    imitate = jax.jit(
        step.make_train_step(
            lambda params, batch, key: autoregressive.loss(gpt, params, batch, None),
            optimizer,
            schedule=schedule,
        )
    )
    first = step.create_state(model.initial_state().params["policy"], optimizer=optimizer, seed=0)
    generator = np.random.default_rng(0)
    for _ in range(300):
        nodes, lengths = walks(generator, 128)
        inside = np.arange(1, nodes.shape[1]) < lengths[:, None]
        batch = {
            "decoder_input_tokens": nodes[:, :-1],
            "decoder_target_tokens": nodes[:, 1:],
            "decoder_loss_weights": inside.astype(np.float32),
        }
        first, _ = imitate(first, batch)

    def starts(_):
        return generator.choice(toy.STARTS, (ROWS, 1))

    _, log = train(model, first.params, starts, steps=100, new=toy.STEPS)
    optimality = [one["reward"] for one in log]
    print(f"optimality: {optimality[0]:.3f} -> {np.mean(optimality[-10:]):.3f}")
    assert optimality[0] < 0.6
    assert np.mean(optimality[-10:]) > 0.9
