"""Toy language models, as a decoder sees them: (extend, logits, cache) after a prompt."""

import flax.struct
import jax
import jax.numpy as jnp
import pytest


@flax.struct.dataclass
class LastToken:
    """The cache of a table model."""

    token: jax.Array

    def gather(self, rows):
        return LastToken(self.token[rows])

    reorder = gather


@flax.struct.dataclass
class Hidden:
    """The cache of a recurrent model."""

    state: jax.Array

    def gather(self, rows):
        return Hidden(self.state[rows])

    reorder = gather


def look_up(table, tokens, cache):
    return table[cache.token, tokens[:, 0]][:, None], LastToken(tokens[:, 0])


def recur(weights, tokens, cache):
    embedding, mix, read = weights
    state = jnp.tanh(cache.state @ mix + embedding[tokens[:, 0]])
    return (state @ read)[:, None], Hidden(state)


@pytest.fixture
def table_model():
    """Logits looked up by the last two tokens, [V, V, V]; prompts of one token, seen twice."""

    def prompted(table, starts):
        starts = jnp.asarray(starts)
        extend = jax.tree_util.Partial(look_up, jnp.asarray(table))
        logits, cache = extend(starts[:, None], LastToken(starts))
        return extend, logits[:, 0], cache

    return prompted


@pytest.fixture
def random_table():
    """Builds a random table [V, V, V]; `end` is added to the logit of token 1."""

    def draw(*, vocabulary=6, seed=0, scale=1.5, end=0.0):
        table = scale * jax.random.normal(jax.random.key(seed), (vocabulary,) * 3)
        return table.at[..., 1].add(end)

    return draw


@pytest.fixture
def recurrent_model():
    """A recurrent network, whose state of 5 numbers remembers every token so far."""

    def prompted(starts, *, vocabulary=7, width=5, seed=0):
        keys = jax.random.split(jax.random.key(seed), 3)
        shapes = [(vocabulary, width), (width, width), (width, vocabulary)]
        weights = [1.5 * jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True)]
        starts = jnp.asarray(starts)
        extend = jax.tree_util.Partial(recur, weights)
        logits, cache = extend(starts[:, None], Hidden(jnp.zeros((len(starts), width))))
        return extend, logits[:, 0], cache

    return prompted
