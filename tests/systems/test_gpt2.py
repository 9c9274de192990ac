"""GPT-2: its published sizes, its initialization, its causality."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import systems
from t5x_like.systems import gpt2

# Of `openai-community/gpt2`, -medium, -large and -xl; table 2 has 117M to 1542M.
PUBLISHED = {
    "small": 124_439_808,
    "medium": 354_823_168,
    "large": 774_030_080,
    "xl": 1_557_611_200,
}
TINY = gpt2.SIZES["small"] | {
    "vocab_size": 64,
    "positions": 32,
    "layers": 8,
    "d_model": 16,
    "d_ff": 64,
    "heads": 2,
}


@pytest.mark.parametrize("size", gpt2.SIZES)
def test_parameters_as_published(size):
    module = systems.build("gpt2", gpt2.SIZES[size])
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    leaves = jax.tree.leaves(nn.unbox(boxed)["params"])
    assert sum(math.prod(leaf.shape) for leaf in leaves) == PUBLISHED[size]


@functools.cache
def make():
    module = systems.build("gpt2", TINY)
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    return module, init(jax.random.key(0))


def test_outputs_of_sublayers_are_initialized_smaller_by_the_root_of_2n():
    _, params = make()
    block = params["decoder"]["layers"]["block"]
    inner = [block["self_attention"]["query"]["kernel"], block["feed_forward"]["wi"]["kernel"]]
    outer = [block["self_attention"]["out"]["kernel"], block["feed_forward"]["wo"]["kernel"]]
    for kernel in inner:
        np.testing.assert_allclose(np.std(kernel), 0.02, rtol=0.1)
    for kernel in outer:
        np.testing.assert_allclose(np.std(kernel), 0.02 / 4, rtol=0.1)


def test_a_token_changes_what_comes_after_it_alone():
    module, params = make()
    tokens = np.arange(1, 13)[None]
    other = tokens.copy()
    other[0, 6] = 40
    apply = jax.jit(module.apply)
    prompt = np.ones_like(tokens)  # which a prefix LM would read in both directions
    batches = (
        {"decoder_input_tokens": each, "decoder_causal_attention": prompt}
        for each in (tokens, other)
    )
    one, two = (np.asarray(apply({"params": params}, batch)) for batch in batches)
    changed = (np.abs(one - two).max(axis=-1) > 0)[0]
    assert changed.tolist() == [False] * 6 + [True] * 6


def test_places_beyond_the_table_are_refused():
    module, params = make()
    with pytest.raises(ValueError, match=r"33 tokens are more than the 32 positions"):
        module.apply({"params": params}, {"decoder_input_tokens": jnp.ones((1, 33), int)})
