"""ELMo: its published sizes, PyTorch's numbers, the released format, what a direction sees."""

import functools
import json
import math

import flax.linen as nn
import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import from_pretrained, losses, systems
from t5x_like.systems import elmo
from t5x_like.systems.elmo.network import LayerMix
from t5x_like.vocabularies.words import spell_all, spell_texts
from tests.golden import drawn_elmo, drawn_weights

# The released models without the softmax; AllenNLP prints 93.6, 28.0 and 13.6 million.
PUBLISHED = {"original": 93_600_864, "medium": 28_027_744, "small": 13_593_312}
TINY = elmo.SIZES["small"] | {
    "vocab_size": 23,
    "filters": ((1, 4), (2, 5), (3, 6)),
    "cell": 7,
    "d_model": 6,
    "task_width": 5,
    "dropout": 0.0,
}
# Float32 sums of tens of terms of order 1, in another order, through two layers.
ROUNDING = 2e-5


def abstract(config):
    module = systems.build("elmo", config)
    shapes = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    return nn.unbox(shapes)["params"]


def count(shapes):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize("size", PUBLISHED)
def test_parameters_as_published(size):
    config = elmo.SIZES[size]
    assert count(abstract(config | {"head": "features"})) == PUBLISHED[size]
    softmax = config["vocab_size"] * (config["d_model"] + 1)
    assert count(abstract(config)) == PUBLISHED[size] + softmax


def test_the_softmax_over_793471_words_is_as_large_as_four_models():
    shapes = abstract(elmo.SIZES["original"])
    assert count(shapes["head"]) == 407_050_623


def write_released(folder, *, clips, **changes):
    """A folder in AllenNLP's format with drawn weights."""
    with h5py.File(folder / "tiny_weights.hdf5", "w") as file:
        for name, shape in drawn_elmo.shapes().items():
            file[name] = drawn_weights.draw(name, shape)
    lstm = {
        "use_skip_connections": True,
        "projection_dim": drawn_elmo.WIDTH,
        "cell_clip": clips[0],
        "proj_clip": clips[1],
        "dim": drawn_elmo.CELL,
        "n_layers": drawn_elmo.LAYERS,
    }
    characters = {
        "activation": "relu",
        "filters": drawn_elmo.FILTERS,
        "n_highway": drawn_elmo.HIGHWAYS,
        "embedding": {"dim": 16},
        "n_characters": 262,
        "max_characters_per_token": 50,
    }
    options = {"lstm": lstm | changes, "char_cnn": characters}
    (folder / "tiny_options.json").write_text(json.dumps(options))
    return folder


def drawn_characters():
    """The two drawn texts, the second with padding; characters of a batch begin at 1."""
    texts = drawn_elmo.texts()
    characters = np.zeros([2, len(texts[0]), 50], np.int32)
    for row, text in zip(characters, texts, strict=True):
        row[: len(text)] = text + 1
    return characters


@pytest.mark.parametrize(("name", "clips"), [("unclipped", (0, 0)), ("clipped", drawn_elmo.CLIPS)])
def test_all_layers_are_pytorch_s_from_a_folder_in_the_released_format(tmp_path, name, clips):
    model = from_pretrained(write_released(tmp_path, clips=clips))
    found = model(characters=drawn_characters(), output_hidden_states=True).hidden_states
    with np.load(drawn_elmo.FILE) as golden:
        for row, length in enumerate(drawn_elmo.LENGTHS):
            expected = golden[f"{name}/{row}"]
            np.testing.assert_allclose(found[:, row, :length], expected, atol=ROUNDING)
    if name == "clipped":
        outputs = np.abs(found[1])
        assert 0.05 < np.mean(outputs == np.float32(clips[1])) < 0.95
        assert outputs.max() <= np.float32(clips[1])


def test_a_released_model_takes_characters_alone(tmp_path):
    model = from_pretrained(write_released(tmp_path, clips=(3, 3)))
    with pytest.raises(ValueError, match=r"reads words by their characters.*'input_ids'"):
        model(characters=drawn_characters(), input_ids=[[1]])
    with pytest.raises(ValueError, match="characters contains the id 262"):
        model(characters=np.full([1, 2, 50], 262))


def test_a_released_folder_that_is_not_supported_is_refused_in_one_line(tmp_path):
    write_released(tmp_path, clips=(3, 3), use_skip_connections=False)
    with pytest.raises(ValueError, match=r"options.json: lstm.use_skip_connections=False is not"):
        from_pretrained(tmp_path)
    write_released(tmp_path, clips=(3, 3), dim=8)
    with pytest.raises(ValueError, match=r"lstm/layer_0/\w+ has shape .*; the options imply"):
        from_pretrained(tmp_path)


def texts(rows):
    """A batch of texts of words."""
    characters = spell_texts([row.split() for row in rows])
    return {"encoder_characters": characters, "encoder_segment_ids": characters[..., 0] > 0}


@functools.cache
def make(**changes):
    module = systems.build("elmo", TINY | changes)
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch()))["params"]
    return module, jax.tree.map(lambda x: x * 3, params)


class Given(nn.Module):
    """Vectors of words in place of their characters."""

    def __call__(self, vectors):
        return vectors


def test_neither_direction_sees_the_word_that_it_predicts():
    module, params = make()
    place, words = 2, 6
    vectors = jax.random.normal(jax.random.key(1), (1, words, TINY["d_model"]))
    module = module.clone(make_words=Given)

    def logits(vectors):
        batch = {"encoder_characters": vectors, "encoder_segment_ids": jnp.ones((1, words))}
        outputs = module.apply({"params": params}, batch)
        forward, backward = outputs["forward_logits"], outputs["backward_logits"]
        return {"forward": forward[0, place - 1], "backward": backward[0, place + 1]}

    found = jax.jit(jax.jacrev(logits))(vectors)
    seen = {name: np.abs(one).max(axis=(0, 1, 3)) > 0 for name, one in found.items()}
    np.testing.assert_array_equal(seen["forward"], [1, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(seen["backward"], [0, 0, 0, 1, 1, 1])


def streams_batch(rows, length, *, seed=0, vocabulary=TINY["vocab_size"]):
    """A batch of two streams of drawn words."""
    random = np.random.default_rng(seed)
    characters = random.integers(1, 262, (2, rows, length, 50), np.int32)
    targets = random.integers(0, vocabulary, (2, rows, length), np.int32)
    return {
        "encoder_characters": characters[0],
        "encoder_backward_characters": characters[1],
        "encoder_target_tokens": targets[0],
        "encoder_backward_targets": targets[1],
        "encoder_loss_weights": np.ones([rows, length], np.float32),
        "encoder_segment_ids": np.ones([rows, length], np.int32),
    }


def cut(batch, start, end):
    return {name: values[:, start:end] for name, values in batch.items()}


def test_streams_in_two_batches_are_read_as_in_one():
    module, params = make()
    batch = streams_batch(3, 8)

    @jax.jit
    def measure(batch, carry):
        return elmo.loss(module, params, batch, None, carry=carry)

    first = elmo.first_state(module, batch)
    (whole, weight, sums), state = measure(batch, first)
    assert weight == 24
    (one, _, _), between = measure(cut(batch, 0, 4), first)
    (two, _, _), after = measure(cut(batch, 4, 8), between)
    np.testing.assert_allclose(one + two, whole, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), after, state)
    (forgetful, _, _), _ = measure(cut(batch, 4, 8), first)
    assert abs(forgetful - two) > 1e-2
    means = [
        total / w for total, w in (sums[f"{n}/cross_entropy"] for n in ("forward", "backward"))
    ]
    np.testing.assert_allclose(whole / weight, np.mean(means), rtol=1e-6)


def test_the_streams_loss_is_that_of_the_logits_of_each_text():
    module, params = make()
    words = ["<S>", "a", "bee", "sees", "</S>"]
    ids = np.array([[0, 3, 4, 5, 1]])
    spelled = spell_all(words)[None]
    text = {"encoder_characters": spelled, "encoder_segment_ids": np.ones([1, 5])}
    outputs = jax.jit(module.apply)({"params": params}, text)
    forward, backward = (
        jax.nn.log_softmax(outputs[f"{name}_logits"]) for name in ("forward", "backward")
    )
    expected = [
        -sum(forward[0, n, ids[0, n + 1]] for n in range(4)),
        -sum(backward[0, n, ids[0, n - 1]] for n in range(4, 0, -1)),
    ]
    batch = {
        "encoder_characters": spelled[:, :-1],
        "encoder_backward_characters": spelled[:, :0:-1],
        "encoder_target_tokens": ids[:, 1:],
        "encoder_backward_targets": ids[:, -2::-1],
        "encoder_loss_weights": np.ones([1, 4]),
        "encoder_segment_ids": np.ones([1, 4]),
    }
    first = elmo.first_state(module, batch)
    (total, _, sums), _ = elmo.loss(module, params, batch, None, carry=first)
    found = [sums[f"{name}/cross_entropy"][0] for name in ("forward", "backward")]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(total, np.mean(expected), rtol=1e-5)


def test_padding_of_a_text_changes_no_other_state():
    module, params = make()
    apply = jax.jit(functools.partial(module.apply, method="states"))
    both = apply({"params": params}, texts(["a bee sees dee", "a bee"]))
    alone = apply({"params": params}, texts(["a bee"]))
    np.testing.assert_allclose(both[:, 1, :4], alone[:, 0], atol=1e-6)


def test_a_word_is_drawn_as_often_as_its_probability():
    vocabulary, number, draws = 50, 10, 4000
    draw = functools.partial(elmo.draw, vocabulary=vocabulary, number=number)
    words, times = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), draws))
    assert all(len({*row}) == number for row in np.asarray(words[:100]).tolist())
    counts = np.bincount(np.ravel(words), minlength=vocabulary) / draws
    assert counts[0] > 5 * counts[-1]
    # A sum over the drawn words, each divided by its probability, estimates the whole sum.
    values = np.exp(np.random.default_rng(0).normal(size=vocabulary))
    log_q = elmo.log_expected(words, times[:, None], vocabulary=vocabulary)
    estimates = np.sum(values[words] / np.exp(log_q), axis=1)
    error = estimates.std() / draws**0.5
    assert abs(estimates.mean() - values.sum()) < 4 * error < 0.05 * values.sum()


def test_the_sampled_loss_approaches_the_loss_over_all_words():
    vocabulary, width = 300, 6
    keys = jax.random.split(jax.random.key(0), 4)
    hidden = jax.random.normal(keys[0], (4, 5, width))
    kernel = jax.random.normal(keys[1], (vocabulary, width)) / 2
    bias = jax.random.normal(keys[2], (vocabulary,)) / 2
    targets = jax.random.randint(keys[3], (4, 5), 0, vocabulary)
    weights = jnp.ones((4, 5)).at[1, 2].set(0)
    inputs = hidden, targets, weights, kernel, bias
    whole, weight, sums = elmo.full_softmax(*inputs)
    assert weight == 19
    expected, _, by_hand = losses.cross_entropy(hidden @ kernel.T + bias, targets, weights)
    np.testing.assert_allclose(whole, expected, rtol=1e-6)
    assert sums["accuracy"] == by_hand["accuracy"]

    def mean_loss(number):
        one = functools.partial(elmo.sampled_softmax, number=number)
        keys = jax.random.split(jax.random.key(number), 50)
        found = jax.jit(jax.vmap(lambda key: one(key, *inputs)[0]))(keys)
        return abs(np.mean(found) / weight - whole / weight)

    # The right word, too, has its logarithm subtracted, so that there is a bias: 0 for all words.
    far, near, all_but_one = (mean_loss(number) for number in (10, 100, 299))
    print(far, near, all_but_one)
    assert all_but_one < 0.01 < near < far
    with pytest.raises(ValueError, match=r"loss.sampled=300 must be below model.vocab_size=300"):
        elmo.sampled_softmax(keys[0], *inputs, number=300)


def test_the_mix_is_a_scaled_mean_at_first():
    states = jax.random.normal(jax.random.key(0), (3, 2, 4, 6)) * 5 + 1
    mix = LayerMix()
    params = nn.unbox(mix.init(jax.random.key(1), states))
    np.testing.assert_allclose(mix.apply(params, states), states.mean(axis=0), atol=1e-5)
    other = {"params": {"weights": jnp.array([0.0, 100.0, 0.0]), "gamma": jnp.float32(2)}}
    np.testing.assert_allclose(mix.apply(other, states), 2 * states[1], atol=1e-5)
    normed = LayerMix(norm=True).apply(other, states)
    np.testing.assert_allclose(normed.mean(axis=-1), 0, atol=1e-5)
    np.testing.assert_allclose(normed.std(axis=-1), 2, atol=1e-4)
    np.testing.assert_array_equal(
        LayerMix(kind="last").apply(
            {"params": {"weights": jnp.zeros(1), "gamma": jnp.ones(())}}, states
        ),
        states[-1],
    )


@pytest.mark.parametrize("head", ["tagging", "chained_tagging", "classification"])
@pytest.mark.parametrize("place", ["input", "output", "both", "none"])
def test_elmo_is_included_where_the_setting_puts_it(head, place):
    config = TINY | {"head": head, "labels": 3, "elmo": place}
    shapes = abstract(config)
    mixes = {name for name in shapes if name.startswith("mix_")}
    assert (
        mixes
        == {
            "input": {"mix_input"},
            "output": {"mix_output"},
            "both": {"mix_input", "mix_output"},
            "none": set(),
        }[place]
    )
    d_model, width = TINY["d_model"], TINY["task_width"]
    read = shapes["task_lstm"]["layer_0"]["input"].shape[1]
    assert read == d_model + (2 * d_model if "mix_input" in mixes else 0)
    name = "classifier" if head == "classification" else "tagger"
    seen = shapes["head"][name]["kernel"].shape[0]
    assert seen == 2 * width + (2 * d_model if "mix_output" in mixes else 0)


def test_mistakes_in_settings_are_one_line():
    for changes, message in (
        ({"elmo": "inpt"}, r"model.elmo='inpt'"),
        ({"mix": "top"}, r"model.mix='top'"),
        ({"filters": ((60, 4),)}, r"model.filters=.* a width, 1 to 50 characters"),
        ({"head": "tagging", "labels": 1}, r"model.labels=1: the head 'tagging' needs 2"),
    ):
        with pytest.raises(ValueError, match=message):
            systems.build("elmo", TINY | changes)
