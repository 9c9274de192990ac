"""MASS in two languages: language embeddings, and back-translation with the newest network."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import systems
from t5x_like.losses import autoregressive
from t5x_like.systems import mass, multilingual_mass
from t5x_like.training.step import TrainState

multilingual = multilingual_mass
TINY = multilingual.SIZES["big"] | {
    "vocab_size": 40,
    "positions": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "d_model": 16,
    "d_ff": 32,
    "heads": 2,
    "dropout": 0.0,
}
END, START = 3, 2


@functools.cache
def make():
    module = systems.build("multilingual_mass", TINY)
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    # Larger than the initialization, so that languages and tokens are far from rounding.
    leaves, structure = jax.tree.flatten(init(jax.random.key(0)))
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noise = [0.6 * jax.random.normal(key, x.shape) for key, x in zip(keys, leaves, strict=True)]
    wide = [5 * x if x.ndim > 1 else x for x in leaves]
    return module, jax.tree.unflatten(structure, [x + n for x, n in zip(wide, noise, strict=True)])


def rows():
    """Two texts of different lengths, and a row of padding."""
    targets = np.array([[7, 8, 9, 10, END], [11, 12, END, 0, 0], [0] * 5])
    return {
        "encoder_input_tokens": np.full((3, 6), 4),
        "encoder_segment_ids": np.ones((3, 6), np.int32),
        "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)), constant_values=START)[:, :-1],
        "decoder_target_tokens": targets,
        "decoder_loss_weights": (targets > 0).astype(np.float32),
    }


def of_plain_mass(params, *, source, target):
    """The logits of MASS without languages, in whose tables of positions they are added."""
    plain = {name: x for name, x in params.items() if name != "language_embedder"}
    languages = params["language_embedder"]["embedding"]
    for side, number in (("encoder", source), ("decoder", target)):
        entrance = plain[side]["entrance"]
        table = entrance["position"]["embedding"] + languages[number]
        entrance = entrance | {"position": {"embedding": table}}
        plain |= {side: plain[side] | {"entrance": entrance}}
    module = systems.build("mass", {name: TINY[name] for name in mass.SIZES["big"]})
    return jax.jit(module.apply)({"params": plain}, rows())


@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0), (1, 1)])
def test_each_side_adds_the_embedding_of_its_language(source, target):
    module, params = make()
    module = multilingual.between(module, source, target)
    found = jax.jit(module.apply)({"params": params}, rows())
    expected = of_plain_mass(params, source=source, target=target)
    np.testing.assert_allclose(found, expected, atol=1e-4)  # sums in another order
    other = of_plain_mass(params, source=1 - source, target=target)
    assert np.abs(other - expected).max() > 1e-2


def test_the_loss_is_that_of_the_languages_of_its_task():
    module, params = make()
    settings = {"source_language": 1, "target_language": 0}
    found = multilingual.loss(module, params, rows(), None, **settings)
    expected = autoregressive.loss(multilingual.between(module, 1, 0), params, rows(), None)
    assert found[0] == expected[0]
    assert multilingual.loss(module, params, rows(), None)[0] != found[0]


def masked_rows():
    """Rows whose sources are the targets with one token replaced, and a row of padding."""
    batch = rows()
    sources = batch["decoder_target_tokens"].copy()
    sources[[0, 1], [2, 0]] = 4
    return batch | {
        "encoder_input_tokens": sources,
        "encoder_segment_ids": (sources > 0).astype(int),
    }


def test_bert_and_a_language_model_are_trained_apart():
    """BERT+LM is the sum of the mean losses of two networks that share only their embeddings."""
    module, params = make()
    batch = masked_rows()
    settings = {"source_language": 1, "target_language": 1, "bert_lm": True}
    run = functools.partial(multilingual.loss, module, rng=None, **settings)
    total, weight, metrics = run(params, batch)
    kernel, bias = params["token_embedder"]["embedding"], params["lm_head"]["bias"]
    memory, _ = multilingual.between(module, 1, 1).apply({"params": params}, batch, method="encode")
    log_probs = jax.nn.log_softmax(memory @ kernel.T + bias)
    targets, mask = batch["decoder_target_tokens"], batch["encoder_input_tokens"] == 4
    bert = -np.take_along_axis(np.array(log_probs), targets[..., None], -1)[..., 0][mask].mean()
    assert metrics["bert/cross_entropy"][1] == mask.sum() == 2
    lm = metrics["cross_entropy"][0] / metrics["cross_entropy"][1]
    assert float(total / weight) == pytest.approx(float(bert + lm), rel=1e-5)
    # The language model's loss does not depend on the encoder's rows, nor BERT's on the decoder.
    other = run(params, batch | {"encoder_input_tokens": np.full((3, 5), 9)})[2]
    assert other["cross_entropy"][0] == metrics["cross_entropy"][0]
    decoder = jax.tree.map(lambda leaf: 2 * leaf, params["decoder"])
    other = run(params | {"decoder": decoder}, batch)[2]
    assert other["bert/cross_entropy"][0] == metrics["bert/cross_entropy"][0]
    assert other["cross_entropy"][0] != metrics["cross_entropy"][0]


def translated_by_hand(params, *, source, target, new):
    """Greedy translations of the targets, one token after another without a cache."""
    module = multilingual.between(make()[0], source, target)
    apply = jax.jit(module.apply)
    texts = rows()["decoder_target_tokens"]
    found = np.zeros((3, new), int)
    for row in range(2):
        tokens = [START]
        for _ in range(new):
            batch = {
                "encoder_input_tokens": texts[row : row + 1],
                "encoder_segment_ids": (texts[row : row + 1] > 0).astype(np.int32),
                "decoder_input_tokens": np.array([tokens + [0] * (new - len(tokens))]),
            }
            logits = apply({"params": params}, batch)[0, len(tokens) - 1]
            tokens.append(int(np.argmax(logits)))
            if tokens[-1] == END:
                break
        found[row, : len(tokens) - 1] = tokens[1:]
    return found


@pytest.mark.parametrize(("bias", "lengths"), [(0.0, [6, 6]), (3.0, [5, 1])])
def test_sources_are_translations_of_the_targets_by_the_newest_network(bias, lengths):
    """With a larger bias of the end token, translations end early."""
    module, params = make()
    params = params | {"lm_head": {"bias": params["lm_head"]["bias"].at[END].add(bias)}}
    state = TrainState(step=0, params=params, opt_state=None, rng=None, carry=None)
    settings = {"source_language": 0, "target_language": 1, "back_translation": True}
    run = functools.partial(multilingual.prepare, module, **settings)
    found = jax.jit(run)(state, rows(), jax.random.key(0))
    expected = translated_by_hand(params, source=1, target=0, new=6)
    np.testing.assert_array_equal(found["encoder_input_tokens"], expected)
    np.testing.assert_array_equal(found["encoder_segment_ids"], (expected > 0).astype(int))
    for name in ("decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights"):
        np.testing.assert_array_equal(found[name], rows()[name])
    assert (expected > 0).sum(axis=1).tolist() == [*lengths, 0]


def test_a_batch_that_is_not_translated_back_stays_as_it_is():
    module, _ = make()
    batch = rows()
    settings = {"source_language": 0, "target_language": 0}
    assert multilingual.prepare(module, None, batch, None, **settings) is batch


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"back_translation": True}, "needs loss.source_language and loss.target_language"),
        (
            {"source_language": 0, "target_language": 2, "back_translation": True},
            r"loss\.target_language=2 must be below model\.languages=2",
        ),
    ],
)
def test_wrong_settings_of_a_task_are_named(settings, message):
    module, params = make()
    state = TrainState(step=0, params=params, opt_state=None, rng=None, carry=None)
    with pytest.raises(ValueError, match=message):
        multilingual.prepare(module, state, rows(), jax.random.key(0), **settings)


def test_bert_lm_needs_rows_of_equal_lengths():
    module, params = make()
    with pytest.raises(ValueError, match=r"needs equal data\.lengths\.inputs and targets"):
        multilingual.loss(module, params, rows(), None, bert_lm=True)


def test_packed_rows_and_unknown_languages_are_refused():
    module, params = make()
    state = TrainState(step=0, params=params, opt_state=None, rng=None, carry=None)
    packed = rows() | {"encoder_positions": jnp.zeros((3, 6), int)}
    settings = {"source_language": 0, "target_language": 1, "back_translation": True}
    with pytest.raises(ValueError, match=r"set data\.pack=False"):
        multilingual.prepare(module, state, packed, jax.random.key(0), **settings)
    with pytest.raises(ValueError, match=r"model\.target_language=2 must be below"):
        systems.build("multilingual_mass", TINY | {"target_language": 2})
