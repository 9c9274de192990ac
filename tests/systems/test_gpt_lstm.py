"""GPT with an LSTM instead of the Transformer: its size, documents, padding, caches, heads."""

import functools
import math

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5x_like import partitioning, systems
from t5x_like.pretrained import Pretrained
from t5x_like.systems import gpt

TINY = gpt.SIZES["lstm"] | {"vocab_size": 61, "lstm": 7, "d_model": 12, "dropout": 0.0}
TOKENS = np.random.default_rng(0).integers(1, 61, (2, 9))


@functools.cache
def make(**changes):
    module = systems.build("gpt", TINY | changes)
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch()))["params"]
    return module, jax.tree.map(lambda x: x * 5 if x.ndim > 1 else x, params)


@functools.cache
def jitted(method="__call__"):
    module, params = make()
    apply = functools.partial(module.apply, {"params": params}, method=method)
    return jax.jit(apply, static_argnames="cache_length")


def test_its_parameters():
    """The embeddings, an LSTM of 2,048 units with one bias a gate, and the way back to 768."""
    module = systems.build("gpt", gpt.SIZES["lstm"])
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nn.unbox(boxed)["params"]))
    assert count == 40_478 * 768 + 4 * 2048 * (768 + 2048 + 1) + (2048 + 1) * 768


@pytest.mark.parametrize("name", ["layers", "d_ff", "heads", "positions"])
def test_settings_of_the_transformer_are_refused(name):
    with pytest.raises(ValueError, match=rf"model\.{name}=6 has no effect with model\.lstm=7"):
        systems.build("gpt", TINY | {name: 6})


def test_a_token_changes_what_comes_after_it_alone():
    other = TOKENS.copy()
    other[:, 4] = 60
    one, two = (jitted()({"decoder_input_tokens": tokens}) for tokens in (TOKENS, other))
    moved = np.abs(one - two).max(axis=(0, 2)) > 0
    assert moved.tolist() == [False] * 4 + [True] * 5


def test_documents_of_a_packed_row_are_read_one_by_one():
    packed = {
        "decoder_input_tokens": TOKENS[:1],
        "decoder_segment_ids": np.repeat([[1, 2]], [5, 4], axis=1),
        "decoder_positions": np.concatenate([np.arange(5), np.arange(4)])[None],
    }
    second = jitted()({"decoder_input_tokens": TOKENS[:1, 5:]})
    np.testing.assert_allclose(jitted()(packed)[:, 5:], second, atol=1e-5)


def test_cached_steps_have_the_logits_of_a_whole_text_beside_padding_on_the_left():
    real = np.array([[True] * 5, [False] * 2 + [True] * 3])
    logits, cache = jitted("prefill")(
        np.where(real, TOKENS[:, :5], 0), decoder_mask=real, cache_length=9
    )
    steps = [logits[:, None]]
    for step in (slice(5, 6), slice(6, 9)):
        logits, cache = jitted("extend")(TOKENS[:, step], cache)
        steps.append(logits)
    found = np.concatenate(steps, axis=1)
    for row, padding in enumerate((0, 2)):
        whole = jitted()({"decoder_input_tokens": TOKENS[row : row + 1, padding:]})[0]
        np.testing.assert_allclose(found[row], whole[4 - padding :], atol=1e-5)


def test_rows_of_a_cache_are_repeated_reordered_and_moved():
    _, cache = jitted("prefill")(TOKENS[:, :5], cache_length=8)
    expected, _ = jitted("extend")(TOKENS[:, 5:6], cache)
    rows = np.array([1, 1, 0, 0])
    for changed in (cache.repeat(2).reorder(np.array([2, 3, 0, 1])), cache.reorder(rows)):
        found, _ = jitted("extend")(TOKENS[rows, 5:6], changed)
        np.testing.assert_allclose(found, expected[rows], atol=1e-5)
    moved, _ = jitted("extend")(TOKENS[:, 5:6], cache.moved(np.array([1, 0])))
    np.testing.assert_allclose(moved, expected, atol=1e-5)


@pytest.mark.parametrize("head", ["classification", "multiple_choice"])
def test_heads_for_labelled_text_read_the_lstm(head):
    module, params = make(head=head, added_tokens=3, labels=3)
    segments = np.ones((2, 1, 9), np.int32)
    segments[1, :, 6:] = 0
    batch = {"decoder_input_tokens": TOKENS[:, None], "decoder_segment_ids": segments}
    labelled = batch | {"label": np.zeros(2, np.int32)}
    total, weight, _ = gpt.fine_tuning_loss(module, params, labelled, None)
    assert weight == 2
    assert np.isfinite(total)
    outputs = module.apply({"params": params}, batch)
    states = module.apply({"params": params}, {"decoder_input_tokens": TOKENS}, method="states")
    last = np.stack([states[0, 8], states[1, 5]])
    classifier = params["head"]["classifier"]
    expected = last @ classifier["kernel"] + classifier["bias"]
    np.testing.assert_allclose(outputs["label_logits"], expected, atol=1e-5)


def test_a_gradient_on_a_mesh_of_eight_is_that_of_one_device():
    module, params = make(vocab_size=64, lstm=8)
    tokens = np.tile(TOKENS, (2, 1))
    rows = {
        "decoder_input_tokens": tokens,
        "decoder_target_tokens": np.roll(tokens, -1, axis=1),
        "decoder_loss_weights": np.ones(tokens.shape, np.float32),
    }

    @jax.jit
    def gradient(params, rows):
        return jax.value_and_grad(lambda p: gpt.loss(module, p, rows, None)[0])(params)

    expected = gradient(params, rows)
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 2, "model": 2})
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    with partitioning.layout(mesh):
        axes = nn.get_partition_spec(boxed)["params"]
        spread = jax.device_put(params, partitioning.shardings(mesh, axes))
        found = gradient(spread, partitioning.shard_batch(rows, mesh))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)  # sums in another order


def test_hugging_face_has_no_such_network(tmp_path):
    module, params = make()
    with pytest.raises(ValueError, match=r"model\.lstm=7: Hugging Face's GPT supports only 0"):
        Pretrained(module, params, system="gpt", config=TINY).save_pretrained(tmp_path)
