"""Rows of a cache that are moved: what comes next is as before, with rotary positions, too."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import systems
from t5x_like.systems import llama

TINY = next(iter(llama.SIZES.values())) | {
    "vocab_size": 32,
    "layers": 1,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "kv_heads": 1,
}
# Float32 sums in another order.
ROUNDING = 2e-5


def test_a_row_continues_from_its_own_last_token_wherever_it_lies():
    module = systems.build("llama", TINY)
    text = jnp.asarray(np.random.default_rng(0).integers(1, 32, (2, 7)), jnp.int32)

    @jax.jit
    def both(key):
        params = {"params": nn.unbox(module.init(key, module.example_batch()))["params"]}
        _, cache = module.apply(params, text[:, :3], cache_length=10, method="prefill")
        _, cache = module.apply(params, text[:, 3:6], cache, method="extend")
        # The second row ends after its fourth token: the two behind it are as padding.
        moved = cache.moved(jnp.asarray([0, 2]))
        after, _ = module.apply(params, text[:, 6:], moved, method="extend")
        whole = module.apply(params, {"decoder_input_tokens": text})
        short = jnp.concatenate([text[1:, :4], text[1:, 6:]], axis=1)
        return after[:, 0], whole[0, 6], module.apply(params, {"decoder_input_tokens": short})[0, 4]

    after, first, second = both(jax.random.key(0))
    np.testing.assert_allclose(after[0], first, atol=ROUNDING)
    np.testing.assert_allclose(after[1], second, atol=ROUNDING)


def test_layers_with_a_window_keep_too_little_to_be_moved():
    module = systems.build("llama", TINY | {"window": 4})
    tokens = jnp.ones((1, 6), jnp.int32)

    def moved(key):
        params = module.init(key, module.example_batch())
        _, cache = module.apply(params, tokens, cache_length=8, method="prefill")
        return cache.moved(jnp.asarray([1]))

    with pytest.raises(ValueError, match="a layer with a window keeps 4 of 8 slots"):
        jax.eval_shape(moved, jax.random.key(0))
