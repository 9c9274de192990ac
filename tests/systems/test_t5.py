"""T5: its published sizes, its initialization, its architectures."""

import math

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5x_like import systems
from t5x_like.systems import t5, umt5

# Of the released checkpoints: v1.0 as the paper's section 3.7 rounds them, v1.1 as Hugging Face's
# `google/t5-v1_1-*` hold them.
PUBLISHED = {
    "v1_0_small": 60_506_624,
    "v1_0_base": 222_903_552,
    "v1_0_large": 737_668_096,
    "v1_0_3b": 2_851_598_336,
    "v1_0_11b": 11_307_321_344,
    "small": 76_961_152,
    "base": 247_577_856,
    "large": 783_150_080,
    "xl": 2_849_757_184,
    "xxl": 11_135_332_352,
}


def shapes(config, *, system="t5"):
    module = systems.build(system, config)
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    return nn.unbox(boxed)["params"]


def count(tree):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("size", t5.SIZES)
def test_parameters_as_published(size):
    assert count(shapes(t5.SIZES[size])) == PUBLISHED[size]


@pytest.mark.parametrize("size", umt5.SIZES)
def test_umt5_is_v1_1_with_more_rows_and_a_bias_in_each_layer(size):
    config = umt5.SIZES[size]
    tables = config["encoder_layers"] + config["decoder_layers"] - 2
    rows = config["vocab_size"] - t5.SIZES[size]["vocab_size"]
    more = 2 * rows * config["d_model"] + tables * 32 * config["heads"]
    found = count(shapes(config, system="umt5"))
    assert found == PUBLISHED[size] + more
    assert size != "small" or round(found / 1e6) == 307  # as Hugging Face counts the released one


def test_architectures_have_the_parameters_that_section_3_2_gives_them():
    base = t5.SIZES["v1_0_base"]
    whole = shapes(base)
    block = whole["encoder"]["layers"]["block"]
    shared = shapes(base | {"architecture": "shared_encoder_decoder"})
    assert count(shared["encoder"]["layers"]["block"]["feed_forward"]) == count(
        block["feed_forward"]
    )
    # Sharing leaves out one stack, with its bias and norm: the paper's P instead of 2P.
    assert count(whole) - count(shared) == count(whole["encoder"])
    decoder = shapes(base | {"architecture": "decoder"})
    assert count(decoder["decoder"]) == count(whole["encoder"])
    assert count(shapes(base | {"architecture": "prefix_decoder"})) == count(decoder)
    six = shapes(base | {"encoder_layers": 6, "decoder_layers": 6})
    assert 2 * count(six["encoder"]["layers"]) == count(whole["encoder"]["layers"])


def initialized(**changes):
    config = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "d_ff": 48, "heads": 2}
    module = systems.build("t5", t5.SIZES["small"] | config | changes)
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    return module, init(jax.random.key(0))


def test_the_first_loss_is_that_of_logits_of_order_one():
    module, params = initialized(vocab_size=512)
    rng = np.random.default_rng(0)
    batch = {
        "encoder_input_tokens": rng.integers(1, 512, (4, 16)),
        "decoder_input_tokens": rng.integers(1, 512, (4, 8)),
        "decoder_target_tokens": rng.integers(1, 512, (4, 8)),
        "decoder_loss_weights": np.ones((4, 8)),
    }
    loss, weight, _ = jax.jit(lambda p: t5.loss(module, p, batch, None))(params)
    # log V, and half the variance of logits of deviation 1; 32 targets leave about 0.2.
    assert abs(float(loss / weight) - (math.log(512) + 0.5)) < 0.7


def test_loss_leaves_padding_out():
    module, params = initialized(vocab_size=32)
    tokens = np.arange(2, 10)[None]
    batch = {
        "encoder_input_tokens": tokens,
        "decoder_input_tokens": tokens,
        "decoder_loss_weights": np.array([[1, 1, 1, 1, 1, 0, 0, 0]]),
    }
    loss = jax.jit(lambda t: t5.loss(module, params, batch | {"decoder_target_tokens": t}, None))
    changed = tokens.copy()
    changed[:, 5:] = 3
    assert float(loss(tokens)[1]) == 5.0
    np.testing.assert_array_equal(loss(tokens)[0], loss(changed)[0])


def test_initial_scores_have_the_size_that_scaled_attention_would_give_them():
    _, params = initialized(d_model=512, heads=6, vocab_size=32)
    attention = params["encoder"]["layers"]["block"]["self_attention"]
    kernels = (np.asarray(attention[name]["kernel"][0]) for name in ("query", "key"))
    x = np.random.default_rng(1).standard_normal((64, 512))
    query, key = (np.einsum("LD,DHK->LHK", x, kernel) for kernel in kernels)
    scores = np.einsum("THK,SHK->HTS", query, key)
    # q.k sums K products; the query is smaller by sqrt(K), so the scores have deviation 1. Of 64
    # x 64 x 6 scores that share queries and keys a tenth either way.
    assert abs(float(scores.std()) - 1.0) < 0.1


def test_scaled_scores_are_those_of_smaller_query_kernels():
    # t5x/contrib/gpu/t5/layers.py divides the input of the query's projection by sqrt(head_dim).
    scaled, params = initialized(vocab_size=32, scaled_scores=True)
    plain, _ = initialized(vocab_size=32)
    batch = {
        "encoder_input_tokens": np.arange(2, 18).reshape(2, 8),
        "decoder_input_tokens": np.arange(3, 11).reshape(2, 4),
    }
    found = scaled.apply({"params": params}, batch)
    assert np.abs(found - plain.apply({"params": params}, batch)).max() > 1e-3
    smaller = jax.tree.map_with_path(
        lambda path, x: x / 64**0.5 if "query" in jax.tree_util.keystr(path) else x, params
    )
    expected = plain.apply({"params": smaller}, batch)
    # Scores are products of rounded factors, in another order.
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_unknown_choices_name_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'prefix_decoder'"):
        systems.build("t5", t5.SIZES["small"] | {"architecture": "prefix_decode"})
    with pytest.raises(ValueError, match="Did you mean 'gated_gelu'"):
        systems.build("t5", t5.SIZES["small"] | {"feed_forward": "gated_glu"})
