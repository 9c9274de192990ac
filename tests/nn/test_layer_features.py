"""Features of several layers, and multiple choice: what heads read and what they output."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import systems
from t5x_like.losses import fine_tuning
from t5x_like.systems import bart, bert, roberta
from t5x_like.systems.bert import FEATURE_LAYERS, LayerFeatures

TINY = {
    "vocab_size": 32,
    "positions": 12,
    "layers": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "dropout": 0.0,
}
STATES = np.random.default_rng(0).normal(size=(7, 2, 3, 4)).astype(np.float32)
EXPECTED = {
    "embeddings": STATES[0],
    "second_to_last": STATES[5],
    "last": STATES[6],
    "concatenated_last_4": np.concatenate(list(STATES[3:]), axis=-1),
}


@functools.cache
def make(system, **settings):
    sizes = next(iter(system.SIZES.values()))
    own = {name: value for name, value in TINY.items() if name in sizes}
    module = systems.build(system.SYSTEM.name, sizes | own | settings)
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    return module, init(jax.random.key(0))


@pytest.mark.parametrize("kind", EXPECTED)
def test_layers_are_read_without_parameters(kind):
    found, params = LayerFeatures(kind=kind).init_with_output(jax.random.key(0), STATES)
    np.testing.assert_array_equal(found, EXPECTED[kind])
    assert not params


@pytest.mark.parametrize(("kind", "first"), [("weighted_last_4", 3), ("weighted_all", 1)])
def test_a_weighted_sum_begins_as_a_mean_and_learns_its_weights(kind, first):
    module = LayerFeatures(kind=kind)
    params = nn.unbox(module.init(jax.random.key(0), STATES))["params"]
    np.testing.assert_allclose(
        module.apply({"params": params}, STATES), STATES[first:].mean(0), atol=1e-6
    )
    weights = jnp.arange(7.0 - first)
    found = module.apply({"params": {"weights": weights, "scale": jnp.asarray(2.0)}}, STATES)
    shares = np.exp(weights) / np.exp(weights).sum()
    expected = 2 * np.tensordot(shares, STATES[first:], axes=1)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("system", [bert, roberta])
def test_a_head_reads_the_layers_that_the_setting_names(system):
    settings = {"head": "tagging", "labels": 3, "layer_features": "concatenated_last_4"}
    module, params = make(system, **settings, layers=4)
    assert params["head"]["tagger"]["kernel"].shape == (4 * TINY["d_model"], 3)
    outputs, collected = module.apply(
        {"params": params}, module.example_batch(), collect=("hidden_states",)
    )
    hidden = np.concatenate(list(collected["encoder"].hidden_states[-4:]), axis=-1)
    tagger = params["head"]["tagger"]
    expected = hidden @ tagger["kernel"] + tagger["bias"]
    np.testing.assert_allclose(outputs["logits"], expected, atol=1e-5)


def test_mistakes_in_the_setting_are_named():
    with pytest.raises(ValueError, match=r"layer_features='weighted_4' .* Did you mean 'weighted_"):
        make(bert, head="tagging", layer_features="weighted_4")
    with pytest.raises(ValueError, match="the head 'masked_lm' reads only 'last'"):
        make(bert, head="masked_lm", layer_features="weighted_all")
    with pytest.raises(ValueError, match="reads 4 layers, and the model has 2"):
        make(bert, head="tagging", layer_features="concatenated_last_4")
    assert set(FEATURE_LAYERS) == {*EXPECTED, "weighted_last_4", "weighted_all"}


def choices():
    random = np.random.default_rng(1)
    tokens, segments = random.integers(5, 32, (2, 3, 8)), np.ones((2, 3, 8), np.int32)
    segments[0, 1, 5:], segments[1, 2], tokens[1, 2] = 0, 0, 0  # the second has two choices
    return {
        "encoder_input_tokens": tokens,
        "encoder_segment_ids": segments,
        "label": np.array([2, 0]),
    }


@pytest.mark.parametrize("system", [bert, bart])
def test_the_scores_of_choices_are_those_of_each_row_alone(system):
    module, params = make(system, head="multiple_choice")
    batch = choices()
    apply = jax.jit(lambda batch: module.apply({"params": params}, batch)["logits"])
    logits = apply(batch)
    assert logits.shape == (2, 3)
    assert logits[1, 2] == -1e9
    alone = {k: v.reshape(6, 1, 8) for k, v in batch.items() if k != "label"}
    np.testing.assert_allclose(logits.ravel()[:5], apply(alone).ravel()[:5], atol=1e-5)


def test_the_loss_of_choices_is_a_softmax_over_the_rows_of_an_example():
    module, params = make(bert, head="multiple_choice")
    batch = choices()
    total, weight, metrics = fine_tuning.loss("multiple_choice", module, params, batch, None)
    logits = np.asarray(module.apply({"params": params}, batch)["logits"], np.float64)
    expected = np.log(np.exp(logits).sum(axis=1)) - logits[[0, 1], [2, 0]]
    np.testing.assert_allclose(total, expected.sum(), rtol=1e-5)
    assert weight == 2
    right = np.argmax(logits, axis=1) == [2, 0]
    np.testing.assert_allclose(metrics["accuracy"][0], right.sum())
    empty = {**batch, "encoder_segment_ids": batch["encoder_segment_ids"].copy()}
    empty["encoder_segment_ids"][1] = 0  # a row of padding at the end of an epoch
    np.testing.assert_allclose(
        fine_tuning.loss("multiple_choice", module, params, empty, None)[0],
        expected[0],
        rtol=1e-5,
    )
