"""Toy language models, as a decoder sees them: (extend, logits, cache) after a prompt."""

import functools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest


@flax.struct.dataclass
class LastToken:
    """The cache of a table model."""

    token: jax.Array

    def repeat(self, times):
        return LastToken(jnp.repeat(self.token, times, axis=0))

    def reorder(self, rows):
        return LastToken(self.token[rows])


@flax.struct.dataclass
class Hidden:
    """The cache of a recurrent model."""

    state: jax.Array

    def repeat(self, times):
        return Hidden(jnp.repeat(self.state, times, axis=0))

    def reorder(self, rows):
        return Hidden(self.state[rows])


@jax.jit
def look_up(table, tokens, cache):
    return table[cache.token, tokens[:, 0]][:, None], LastToken(tokens[:, 0])


@jax.jit
def recur(weights, tokens, cache):
    embedding, mix, read = weights
    state = jnp.tanh(cache.state @ mix + embedding[tokens[:, 0]])
    return (state @ read)[:, None], Hidden(state)


@pytest.fixture
def table_model():
    """Logits looked up by the last two tokens, [V, V, V]; prompts of one token, seen twice."""

    def prompted(table, starts):
        starts = np.asarray(starts)
        extend = jax.tree_util.Partial(look_up, jnp.asarray(table))
        logits, cache = extend(starts[:, None], LastToken(starts))
        return extend, logits[:, 0], cache

    return prompted


@functools.partial(jax.jit, static_argnames="vocabulary")
def draw_table(seed, scale, end, *, vocabulary):
    table = scale * jax.random.normal(jax.random.key(seed), (vocabulary,) * 3)
    return table.at[..., 1].add(end)


@pytest.fixture
def random_table():
    """Builds a random table [V, V, V]; `end` is added to the logit of token 1."""

    def draw(*, vocabulary=6, seed=0, scale=1.5, end=0.0):
        return draw_table(seed, scale, end, vocabulary=vocabulary)

    return draw


@functools.partial(jax.jit, static_argnames=("vocabulary", "width"))
def draw_weights(seed, *, vocabulary, width):
    keys = jax.random.split(jax.random.key(seed), 3)
    shapes = [(vocabulary, width), (width, width), (width, vocabulary)]
    return [1.5 * jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True)]


@pytest.fixture
def recurrent_model():
    """A recurrent network, whose state of 5 numbers remembers every token so far."""

    def prompted(starts, *, vocabulary=7, width=5, seed=0):
        starts = np.asarray(starts)
        extend = jax.tree_util.Partial(
            recur, draw_weights(seed, vocabulary=vocabulary, width=width)
        )
        state = np.zeros((len(starts), width), np.float32)
        logits, cache = extend(starts[:, None], Hidden(state))
        return extend, logits[:, 0], cache

    return prompted
