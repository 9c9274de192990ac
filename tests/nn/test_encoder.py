"""Encoders: who sees whom, what embeddings and heads read, layouts."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import systems
from t5x_like.nn.stack import unstack_layers
from t5x_like.systems import bert

TINY = bert.SIZES["base"] | {
    "vocab_size": 32,
    "positions": 12,
    "layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "dropout": 0.0,
    "head": "features",
}
# Float32 sums of some tens of terms of order 1, in another order.
ROUNDING = 2e-5


@functools.cache
def make(**changes):
    module = systems.build("bert", TINY | changes)
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    # Larger than 0.02, so that what one token changes is seen in float32.
    return module, jax.tree.map(lambda x: x * 5, jax.device_get(init(jax.random.key(0))))


@functools.cache
def jitted(module):
    return jax.jit(module.apply)


def apply(module, params, batch):
    return jax.device_get(jitted(module)({"params": params}, batch))


def example(length=7, *, rows=2):
    random = np.random.default_rng(0)
    return {
        "encoder_input_tokens": jnp.asarray(random.integers(5, 32, (rows, length))),
        "encoder_segment_ids": jnp.asarray(np.ones((rows, length), int)),
        "encoder_token_types": jnp.asarray(random.integers(0, 2, (rows, length))),
    }


def changed(batch, field, place):
    return batch | {field: batch[field].at[:, place].set((batch[field][:, place] + 1) % 2)}


def moved(batch, other, *, rows=0):
    """Which places of the rows are not as before."""
    module, params = make()
    one, two = (apply(module, params, each)["hidden"][rows] for each in (batch, other))
    return (np.abs(one - two).max(axis=-1) > 1e-5).tolist()


@pytest.mark.parametrize("field", ["encoder_input_tokens", "encoder_token_types"])
@pytest.mark.parametrize("place", [0, 3, 6])
def test_every_place_sees_every_other(field, place):
    batch = example()
    assert moved(batch, changed(batch, field, place)) == [True] * 7


def test_padding_is_not_seen():
    batch = example()
    batch["encoder_segment_ids"] = batch["encoder_segment_ids"].at[:, 5:].set(0)
    other = changed(batch, "encoder_input_tokens", 6)
    assert moved(batch, other)[:5] == [False] * 5


def test_documents_of_a_packed_row_do_not_see_each_other_and_count_from_their_start():
    module, params = make()
    alone = example(4, rows=1)
    beside = example(4, rows=2)
    packed = {name: jnp.concatenate([beside[name][1:], alone[name]], axis=1) for name in alone} | {
        "encoder_segment_ids": jnp.asarray([[1] * 4 + [2] * 4]),
        "encoder_positions": jnp.asarray([[0, 1, 2, 3] * 2]),
    }
    expected = apply(module, params, alone)["hidden"][0]
    found = apply(module, params, packed)["hidden"][0, 4:]
    np.testing.assert_allclose(found, expected, atol=ROUNDING)


def test_a_row_longer_than_the_positions_is_an_error():
    module, params = make()
    with pytest.raises(ValueError, match=r"13 tokens are more than the 12 positions"):
        apply(module, params, example(13))


def test_scanned_layers_are_the_looped_ones():
    module, params = make()
    looped, _ = make(loop="unroll")
    layers = unstack_layers(params["encoder"]["layers"], layers=2)
    unstacked = params | {"encoder": {"layers": layers}}
    one, two = apply(module, params, example()), apply(looped, unstacked, example())
    np.testing.assert_allclose(one["hidden"], two["hidden"], atol=ROUNDING)


def test_masked_tokens_are_read_where_they_are_asked_for():
    module, params = make(head="masked_lm")
    whole = apply(module, params, example())["logits"]
    places = jnp.asarray([[1, 5, 6], [0, 2, 4]])
    some = apply(module, params, example() | {"predicted_positions": places})["logits"]
    expected = np.stack([whole[0, [1, 5, 6]], whole[1, [0, 2, 4]]])
    np.testing.assert_allclose(some, expected, atol=ROUNDING)


def test_the_summary_is_of_the_first_token():
    module, params = make()
    output = apply(module, params, example())
    dense = params["head"]["summary"]["dense"]
    expected = jnp.tanh(output["hidden"][:, 0] @ dense["kernel"] + dense["bias"])
    np.testing.assert_allclose(output["summary"], expected, atol=ROUNDING)


@pytest.mark.parametrize("head", ["classification", "tagging"])
def test_a_class_needs_two_labels(head):
    with pytest.raises(ValueError, match=f"model.labels=1: the head '{head}' needs 2 or more"):
        systems.build("bert", TINY | {"head": head, "labels": 1})


def test_an_unknown_head_is_named_with_the_nearest():
    with pytest.raises(ValueError, match=r"model\.head='maskedlm'.*masked_lm"):
        systems.build("bert", TINY | {"head": "maskedlm"})
