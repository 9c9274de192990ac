"""BERT: its published sizes, its initialization, its loss."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import losses, systems
from t5x_like.losses import forward
from t5x_like.systems import bert

# Of `google-bert/bert-*-uncased`, which the paper rounds to 110M and 340M: the encoder and its
# pooler, and with the heads of pretraining (transform, token biases, next sentence).
PUBLISHED = {
    ("base", "features"): 109_482_240,
    ("base", "pretraining"): 110_106_428,
    ("large", "features"): 335_141_888,
    ("large", "pretraining"): 336_226_108,
}
TINY = bert.SIZES["base"] | {
    "vocab_size": 32,
    "positions": 12,
    "layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
}


def shapes(config):
    module = systems.build("bert", config)
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    return nn.unbox(boxed)["params"]


@pytest.mark.parametrize(("size", "head"), PUBLISHED)
def test_parameters_as_published(size, head):
    tree = shapes(bert.SIZES[size] | {"head": head})
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
    assert count == PUBLISHED[size, head]


@functools.cache
def make(head="pretraining"):
    module = systems.build("bert", TINY | {"head": head})
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    return module, init(jax.random.key(0))


def batch():
    random = np.random.default_rng(0)
    weights = np.zeros((3, 10), np.float32)
    weights[0, [2, 7]], weights[1, [1]] = 1, 1
    segments = np.ones((3, 10), np.int32)
    segments[1, 6:], segments[2] = 0, 0  # the last row only pads
    return {
        "encoder_input_tokens": jnp.asarray(random.integers(5, 32, (3, 10))),
        "encoder_target_tokens": jnp.asarray(random.integers(5, 32, (3, 10))),
        "encoder_loss_weights": jnp.asarray(weights),
        "encoder_token_types": jnp.asarray(random.integers(0, 2, (3, 10))),
        "encoder_segment_ids": jnp.asarray(segments),
        "label": jnp.asarray([1, 0, 0]),
    }


def test_the_loss_is_the_mean_of_masked_tokens_and_the_mean_of_pairs():
    module, params = make()
    total, weight, metrics = jax.jit(functools.partial(bert.loss, module))(params, batch(), None)
    outputs = jax.jit(functools.partial(forward, module))(params, batch(), None)
    log_probs = jax.nn.log_softmax(outputs["logits"])
    targets = batch()["encoder_target_tokens"]
    masked = [log_probs[row, place, targets[row, place]] for row, place in [(0, 2), (0, 7), (1, 1)]]
    pairs = jax.nn.log_softmax(outputs["row_logits"])
    following = [pairs[0, 1], pairs[1, 0]]
    assert weight == 3
    np.testing.assert_allclose(total / weight, -np.mean(masked) - np.mean(following), rtol=1e-5)
    np.testing.assert_allclose(metrics["cross_entropy"][0] / 3, -np.mean(masked), rtol=1e-5)
    found, count = metrics["next_sentence/cross_entropy"]
    np.testing.assert_allclose(found / count, -np.mean(following), rtol=1e-5)


def test_more_masked_tokens_than_are_read_make_the_loss_nan():
    module, params = make()
    full = batch() | {"encoder_loss_weights": batch()["encoder_loss_weights"].at[0, :5].set(1)}
    for predicted in (0.6, 0.3):
        loss = jax.jit(functools.partial(bert.loss, module, predicted=predicted))
        assert np.isnan(loss(params, full, None)[0]) == (predicted == 0.3)


def test_the_loss_of_the_head_masked_lm_covers_masked_tokens_alone():
    module, params = make("masked_lm")
    total, weight, metrics = losses.masked_lm.loss(module, params, batch(), None)
    np.testing.assert_allclose(total, metrics["cross_entropy"][0])
    assert weight == 3


def test_only_the_loss_of_pairs_reaches_the_summary():
    module, params = make()

    def total(params, batch):
        return bert.loss(module, params, batch, None)[0]

    gradients = jax.jit(jax.grad(total))
    gradient = gradients(params, batch())
    assert np.abs(gradient["head"]["summary"]["dense"]["kernel"]).max() > 0
    silent = batch() | {"encoder_segment_ids": jnp.zeros((3, 10), int)}
    gradient = gradients(params, silent)
    assert np.abs(gradient["head"]["summary"]["dense"]["kernel"]).max() == 0


def test_weights_are_initialized_as_in_the_paper_s_code():
    _, params = make()
    kernel = params["encoder"]["layers"]["block"]["feed_forward"]["wi"]["kernel"]
    # A normal of deviation 0.02 cut at two deviations; flax's is scaled to keep its deviation.
    assert 0.017 < np.std(kernel) < 0.023
    assert np.abs(kernel).max() < 0.02 / 0.87 * 2.01
    assert np.all(params["embeddings"]["norm"]["scale"] == 1)
    assert np.all(params["head"]["masked_lm"]["output"]["bias"] == 0)


_NAMES = ("bert", "albert", "roberta", "electra", "deberta", "bigbird", "spanbert", "structbert")
HEADS = dict.fromkeys(_NAMES, "masked_lm") | {"xlnet": "language_modeling"}


@pytest.mark.parametrize(("name", "head"), HEADS.items())
def test_every_weight_is_as_wide_as_the_initializer_range(name, head):
    tiny = {**TINY, "layers": 1, "positions": 16}
    size = dict(next(iter(systems.find(name).sizes.values())))
    small = size | {key: value for key, value in tiny.items() if key in size} | {"head": head}
    small |= {key: 16 for key in ("embedding", "d_embedding") if key in size}
    params = []
    for one in (0.02, 0.05):
        module = systems.build(name, small | {"initializer_range": one})
        found = jax.jit(lambda key, of=module: of.init(key, of.example_batch()))(jax.random.key(0))
        params.append(jax.tree.leaves(nn.unbox(found)["params"]))
    for narrow, wide in zip(*params, strict=True):
        if len(set(narrow.ravel().tolist())) > 1:  # not a bias or a norm
            np.testing.assert_allclose(wide, 2.5 * narrow, rtol=1e-5)
