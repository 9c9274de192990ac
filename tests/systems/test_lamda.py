"""LaMDA: its published sizes, its gate, its cache."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import systems
from t5x_like.systems import lamda

# Section 3 has "137B non-embedding parameters" of the largest.
WITHOUT_EMBEDDINGS = {"2b": 2_097_207_040, "8b": 8_590_071_808, "137b": 137_440_014_336}
TINY = lamda.SIZES["2b"] | {
    "vocab_size": 64,
    "layers": 2,
    "d_model": 16,
    "d_ff": 128,
    "heads": 4,
    "head_width": 8,
}
# Float32 sums of some tens of terms of order 1, in another order.
ROUNDING = 2e-5


def shapes(config):
    module = systems.build("lamda", config)
    return nn.unbox(jax.eval_shape(module.init, jax.random.key(0), module.example_batch()))


@pytest.mark.parametrize("size", lamda.SIZES)
def test_parameters_as_published(size):
    params = shapes(lamda.SIZES[size])["params"]
    found = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params["decoder"]))
    assert found == WITHOUT_EMBEDDINGS[size]
    assert math.floor(found / 1e9) == int(size.removesuffix("b"))
    assert set(params) == {"token_embedder", "decoder"}  # the head is the embeddings


@functools.cache
def make():
    module = systems.build("lamda", TINY)
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    return module, init(jax.random.key(0))


@functools.cache
def compiled(method):
    return jax.jit(
        functools.partial(make()[0].apply, method=method), static_argnames="cache_length"
    )


@pytest.mark.parametrize("shut", ["wi_0", "wi_1"])
def test_the_feed_forward_is_a_product_that_either_factor_shuts(shut):
    _, params = make()
    batch = {"decoder_input_tokens": jnp.arange(1, 9)[None]}

    def logits(**scales):
        def scaled(path, x):
            factor = [scales[name] for name in scales if name in jax.tree_util.keystr(path)]
            return x * factor[0] if factor else x

        changed = jax.tree.map_with_path(scaled, params)
        return compiled("__call__")({"params": changed}, batch)

    assert np.abs(logits() - logits(wo=2.0)).max() > 1e-2
    np.testing.assert_array_equal(logits(**{shut: 0.0}), logits(**{shut: 0.0, "wo": 2.0}))


def test_a_token_changes_what_comes_after_it_alone():
    _, params = make()
    tokens = jnp.arange(1, 13)[None]
    one, two = (
        compiled("__call__")({"params": params}, {"decoder_input_tokens": each})
        for each in (tokens, tokens.at[0, 6].set(40))
    )
    changed = (np.abs(one - two).max(axis=-1) > 0)[0]
    assert changed.tolist() == [False] * 6 + [True] * 6


def test_with_a_cache_and_a_padded_prompt_as_without():
    _, params = make()
    text = jnp.asarray(np.random.default_rng(0).integers(1, 64, (2, 8)), jnp.int32)
    full = compiled("__call__")({"params": params}, {"decoder_input_tokens": text})
    prompt = jnp.pad(text[:, :5], ((0, 0), (3, 0)))
    real = jnp.pad(jnp.ones((2, 5), bool), ((0, 0), (3, 0)))
    logits, cache = compiled("prefill")(
        {"params": params}, prompt, decoder_mask=real, cache_length=12
    )
    np.testing.assert_allclose(logits, full[:, 4], atol=ROUNDING)
    for place in range(5, 8):
        logits, cache = compiled("extend")({"params": params}, text[:, place : place + 1], cache)
        np.testing.assert_allclose(logits[:, 0], full[:, place], atol=ROUNDING)
