"""StructBERT: its published sizes, its three losses, its weights as a BERT."""

import functools
import json
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t5x_like import systems
from t5x_like.losses import forward
from t5x_like.pretrained import Pretrained, from_pretrained
from t5x_like.systems import structbert

# BERT's, which the paper gives as 110M and 340M; a third kind of pairs costs D + 1 more.
PUBLISHED = {
    ("base", "features"): 109_482_240,
    ("base", "pretraining"): 110_106_428 + 769,
    ("large", "features"): 335_141_888,
    ("large", "pretraining"): 336_226_108 + 1025,
}
TINY = structbert.SIZES["base"] | {
    "vocab_size": 32,
    "positions": 12,
    "layers": 1,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
}
MASKED, SHUFFLED = [(0, 2), (1, 7)], [(0, 4), (0, 5), (0, 6)]


@pytest.mark.parametrize(("size", "head"), PUBLISHED)
def test_parameters_as_published(size, head):
    module = systems.build("structbert", structbert.SIZES[size] | {"head": head})
    tree = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
    assert count == PUBLISHED[size, head]


@functools.cache
def make(head="pretraining"):
    module = systems.build("structbert", TINY | {"head": head})
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    return module, init(jax.random.key(0))


def batch():
    random = np.random.default_rng(0)
    weights, shuffled = np.zeros((3, 10), np.float32), np.zeros((3, 10), np.int32)
    weights[*zip(*MASKED, strict=True)], shuffled[*zip(*SHUFFLED, strict=True)] = 1, 1
    segments = np.ones((3, 10), np.int32)
    segments[2] = 0  # a row that only pads
    return {
        "encoder_input_tokens": jnp.asarray(random.integers(5, 32, (3, 10))),
        "encoder_target_tokens": jnp.asarray(random.integers(5, 32, (3, 10))),
        "encoder_loss_weights": jnp.asarray(weights),
        "encoder_shuffled": jnp.asarray(shuffled),
        "encoder_token_types": jnp.asarray(random.integers(0, 2, (3, 10))),
        "encoder_segment_ids": jnp.asarray(segments),
        "label": jnp.asarray([2, 1, 0]),
    }


@functools.cache
def outputs(head="pretraining"):
    module, params = make(head)
    return jax.jit(lambda: forward(module, params, batch(), None))()


@functools.cache
def jitted(head="pretraining", predicted=0.4):
    module, _ = make(head)

    def loss(params, batch):
        total, *rest = structbert.loss(module, params, batch, None, predicted=predicted)
        return total, rest

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def test_the_loss_is_the_mean_of_masked_and_of_shuffled_tokens_and_of_pairs():
    _, params = make()
    (total, (weight, metrics)), _ = jitted()(params, batch())
    log_probs = jax.nn.log_softmax(outputs()["logits"])
    targets = batch()["encoder_target_tokens"]
    masked, shuffled = (
        -np.mean([log_probs[row, place, targets[row, place]] for row, place in places])
        for places in (MASKED, SHUFFLED)
    )
    relations = jax.nn.log_softmax(outputs()["row_logits"])
    assert relations.shape == (3, 3)
    pairs = -np.mean([relations[0, 2], relations[1, 1]])
    assert weight == 2
    np.testing.assert_allclose(total / weight, masked + shuffled + pairs, rtol=1e-5)
    # Each has a count of its own.
    expected = {
        "": (masked, 2),
        "word_structure/": (shuffled, 3),
        "sentence_structure/": (pairs, 2),
    }
    for prefix, (mean, number) in expected.items():
        found, count = metrics[f"{prefix}cross_entropy"]
        assert count == number
        np.testing.assert_allclose(found / count, mean, rtol=1e-5)


def test_without_pairs_the_loss_is_that_of_words():
    _, params = make("masked_lm")
    (total, (weight, metrics)), _ = jitted("masked_lm")(params, batch())
    words = sum(
        metrics[f"{prefix}cross_entropy"][0] / metrics[f"{prefix}cross_entropy"][1]
        for prefix in ("", "word_structure/")
    )
    np.testing.assert_allclose(total / weight, words, rtol=1e-5)


def test_rows_too_short_to_shuffle_add_nothing():
    _, params = make()
    still = batch() | {"encoder_shuffled": jnp.zeros((3, 10), jnp.int32)}
    (total, (weight, metrics)), gradient = jitted()(params, still)
    assert metrics["word_structure/cross_entropy"] == (0, 0)
    rest = metrics["cross_entropy"][0] / 2 + metrics["sentence_structure/cross_entropy"][0] / 2
    np.testing.assert_allclose(total / weight, rest, rtol=1e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_more_places_than_are_read_make_the_loss_nan():
    _, params = make()
    # Four places in the first row: one masked, three shuffled.
    assert np.isfinite(jitted(predicted=0.4)(params, batch())[0][0])
    assert np.isnan(jitted(predicted=0.3)(params, batch())[0][0])


def save(folder, head):
    module, params = make(head)
    model = Pretrained(module, params, system="structbert", config=TINY | {"head": head})
    model.save_pretrained(folder)


@pytest.mark.parametrize("head", ["masked_lm", "features", "classification"])
def test_it_is_a_bert_for_hugging_face(head, tmp_path):
    save(tmp_path, head)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "bert"
    model = from_pretrained(tmp_path)
    assert model.system == "bert"
    tokens, types = batch()["encoder_input_tokens"], batch()["encoder_token_types"]
    found = model(input_ids=tokens[:2], token_type_ids=types[:2])
    for name, expected in outputs(head).items():
        np.testing.assert_allclose(getattr(found, name), expected[:2], atol=2e-5)


def test_a_folder_of_bert_with_three_kinds_of_pairs_is_read_whole(tmp_path):
    _, params = make()
    plain = {"row": jax.tree.map(lambda x: x[..., :2], params["head"]["row"])}
    two = params | {"head": params["head"] | plain}
    model = Pretrained(systems.build("bert", TINY), two, system="bert", config=TINY)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    row = params["head"]["row"]
    tensors["cls.seq_relationship.weight"] = np.array(row["kernel"]).T.copy()
    tensors["cls.seq_relationship.bias"] = np.array(row["bias"])
    save_file(tensors, tmp_path / "model.safetensors")

    model = from_pretrained(tmp_path, system="structbert")
    jax.tree.map(np.testing.assert_array_equal, model.params, params)


def test_three_kinds_of_pairs_are_not_written_for_hugging_face(tmp_path):
    with pytest.raises(ValueError, match="Hugging Face's BERT into 2"):
        save(tmp_path, "pretraining")
    assert not list(tmp_path.iterdir())
