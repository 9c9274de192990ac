"""MASS: its parameters, where its decoder's tokens stand, and its two limits."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t5x_like import systems
from t5x_like.systems import mass

TINY = mass.SIZES["big"] | {
    "vocab_size": 40,
    "positions": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "d_model": 16,
    "d_ff": 32,
    "heads": 2,
    "dropout": 0.0,
}


def test_the_parameters_are_those_of_the_papers_table():
    module = systems.build("mass", mass.SIZES["big"])
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nn.unbox(boxed)["params"]))
    d, f, v, norm = 1024, 4096, 60_000, 2 * 1024
    attention = 4 * (d * d + d)
    feed_forward = d * f + f + f * d + d
    ends = v * d + v + 2 * (512 * d + norm)
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    assert count == ends + 6 * (encoder + decoder)


@functools.cache
def make():
    module = systems.build("mass", TINY)
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    params = init(jax.random.key(0))
    # Larger than the initialization, so that dependencies are far from rounding.
    return module, jax.tree.map(lambda x: 5 * x if x.ndim > 1 else x, params)


def batch(*, tokens, positions):
    return {
        "encoder_input_tokens": jnp.array([[7, 4, 4, 4, 9, 3]]),
        "encoder_segment_ids": jnp.ones((1, 6), int),
        "decoder_input_tokens": jnp.array([tokens]),
        "decoder_positions": jnp.array([positions]),
    }


@functools.cache
def compiled():
    module, params = make()
    apply = jax.jit(lambda params, batch: module.apply({"params": params}, batch))
    return functools.partial(apply, params)


def test_the_places_of_a_fragment_count_and_are_not_those_of_the_row():
    logits = compiled()
    here = logits(batch(tokens=[3, 11, 12], positions=[1, 2, 3]))
    first = logits(batch(tokens=[3, 11, 12], positions=[0, 1, 2]))
    assert np.abs(here - first).max() > 0.1
    plain = batch(tokens=[3, 11, 12], positions=[0, 1, 2])
    del plain["decoder_positions"]
    np.testing.assert_array_equal(logits(plain), first)


def test_a_fragment_among_others_in_a_row_is_as_it_is_alone():
    logits = compiled()
    alone = logits(batch(tokens=[3, 11, 12], positions=[1, 2, 3]))
    packed = {
        "encoder_input_tokens": jnp.array([[8, 4, 7, 4, 4, 4, 9, 3]]),
        "encoder_segment_ids": jnp.array([[1, 1, 2, 2, 2, 2, 2, 2]]),
        "encoder_positions": jnp.array([[0, 1, 0, 1, 2, 3, 4, 5]]),
        "decoder_input_tokens": jnp.array([[3, 3, 11, 12]]),
        "decoder_segment_ids": jnp.array([[1, 2, 2, 2]]),
        "decoder_positions": jnp.array([[1, 1, 2, 3]]),
    }
    # Sums over more keys, of weight 0, in another order.
    np.testing.assert_allclose(logits(packed)[0, 1:], alone[0], atol=1e-4)


def test_the_decoder_sees_the_fragment_before_a_token_and_nothing_after_it():
    logits = compiled()
    before = logits(batch(tokens=[3, 11, 12], positions=[1, 2, 3]))
    after = logits(batch(tokens=[3, 20, 12], positions=[1, 2, 3]))
    changed = np.abs(before - after).max(axis=-1)[0] > 0
    assert changed.tolist() == [False, True, True]


def test_of_nothing_but_masks_the_decoder_is_a_language_model():
    """With k = m the encoder has the same output for every sentence of that length."""
    logits = compiled()
    read = batch(tokens=[3, 11, 12, 13, 14, 15], positions=list(range(6)))
    read["encoder_input_tokens"] = jnp.full((1, 6), 4)
    one = logits(read)
    module, params = make()
    memory = jax.jit(
        lambda params, batch: module.apply({"params": params}, batch, method="encode")[0]
    )(params, read)
    # The prediction depends on the tokens before it alone, as the memory is one for all texts.
    other = dict(read, decoder_input_tokens=jnp.array([[3, 11, 12, 30, 31, 32]]))
    np.testing.assert_array_equal(logits(other)[:, :3], one[:, :3])
    assert np.abs(logits(other) - one).max() > 0.1
    assert memory.shape == (1, 6, 16)
