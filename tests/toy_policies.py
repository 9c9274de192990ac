"""Toy systems of PPO whose rewards are computed by a rule, as a user's file has them."""

import functools

import jax.numpy as jnp
import numpy as np

from t5x_like import systems
from t5x_like.nn.compound_networks import ActorCritic
from t5x_like.systems import gpt2, policy_optimization, reward_model
from t5x_like.systems.system import System, Task

PPO = Task(loss=policy_optimization.loss, prepare=policy_optimization.prepare)
TINY = {"layers": 1, "d_model": 32, "d_ff": 64, "heads": 2, "positions": 16, "dropout": 0.0}


def build(network, settings, *, end_id):
    """A network of the class `network`, over a tiny GPT-2."""
    gpt = gpt2.SIZES["small"] | TINY | settings
    value = reward_model.reward_model_of("gpt2", gpt)
    return network(
        make_policy=functools.partial(systems.build, "gpt2", gpt),
        make_value=functools.partial(systems.build, "reward_model", value),
        sides=("decoder",),
        end_id=end_id,
    )


# All sequences of 4 of 6 tokens: each token has a reward of its own, and each pair of neighbours.
SYMBOLS, LENGTH = 6, 4
_generator = np.random.default_rng(0)
OF_TOKENS = _generator.normal(size=(LENGTH, SYMBOLS)).astype(np.float32) / 2
OF_PAIRS = _generator.normal(size=(SYMBOLS, SYMBOLS)).astype(np.float32) / 2


def reward_of(tokens):
    """The reward of sequences [B, 4]."""
    own = jnp.asarray(OF_TOKENS)[jnp.arange(LENGTH), tokens]
    pairs = jnp.asarray(OF_PAIRS)[tokens[:, :-1], tokens[:, 1:]]
    return jnp.sum(own, axis=1) + jnp.sum(pairs, axis=1)


class Sequences(ActorCritic):
    """Rewards of sequences of tokens."""

    def rewards(self, episodes):
        return reward_of(episodes["decoder_input_tokens"][:, -LENGTH:])


SEQUENCES = System(
    name="sequences",
    sizes={"toy": {"vocab_size": SYMBOLS}},
    build=lambda settings: build(Sequences, settings, end_id=None),
    tasks={"": PPO},
)

# Walks on a directed graph to node 0, of at most 9 steps.
NODES, STEPS, GOAL = 21, 9, 0
EDGES = np.random.default_rng(1002).random((NODES, NODES)) < 0.1
np.fill_diagonal(EDGES, False)


def shortest_paths():
    """The number of steps from each node to the goal; STEPS + 1 where there is no way."""
    found = np.full(NODES, STEPS + 1)
    found[GOAL] = 0
    for _ in range(STEPS):
        onwards = np.where(EDGES, found[None], STEPS + 1).min(axis=1)
        found = np.minimum(found, onwards + 1)
    return found


SHORTEST = shortest_paths()
STARTS = np.flatnonzero((SHORTEST > 0) & (SHORTEST <= STEPS))  # nodes with a way to the goal


class Walks(ActorCritic):
    """The optimality of a walk: 1 for a shortest one, falling to 0 for one of STEPS + 1 steps.

    A walk that uses an edge which is not there, or does not arrive, has 0.
    """

    def rewards(self, episodes):
        nodes, mask = episodes["decoder_input_tokens"], episodes["response_mask"] > 0
        before, after = nodes[:, -STEPS - 1 : -1], nodes[:, -STEPS:]
        allowed = jnp.all(jnp.asarray(EDGES)[before, after] | ~mask, axis=1)
        arrived = jnp.any((after == GOAL) & mask, axis=1)
        shortest = jnp.asarray(SHORTEST)[nodes[:, -STEPS - 1]]
        steps = jnp.sum(mask, axis=1)
        share = (STEPS + 1 - steps) / jnp.maximum(STEPS + 1 - shortest, 1)
        return jnp.where(allowed & arrived, share, 0.0)


WALKS = System(
    name="walks",
    sizes={"toy": {"vocab_size": NODES}},
    build=lambda settings: build(Walks, settings, end_id=GOAL),
    tasks={"": PPO},
)
