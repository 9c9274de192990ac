"""Dropout: element-wise, or one mask for all positions as in T5; the setting of each system."""

import functools

import jax
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from t5x_like import systems
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.cores import dense_core
from t5x_like.nn.attention.positions import AttentionMask
from t5x_like.nn.compute import Compute, make_dropout

LENGTH = 7
SMALL = {
    "vocab_size": 32,
    "positions": 12,
    "layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_model": 8,
    "d_embedding": 8,
    "embedding": 4,
    "d_ff": 12,
    "heads": 2,
    "head_width": 4,
    "d_kv": 4,
    "d_k": 4,
    "d_v": 4,
    "generator": 0.5,
    "experts": 2,
    "jitter": 0.0,
    "loop": "unroll",
    "dropout": 0.1,
}
# The systems whose own code has one mask for all positions, and those without dropout.
BROADCAST = {"t5", "umt5", "longt5", "switch", "lamda", "palm"}
WITHOUT = {"gopher", "chinchilla", "llama", "qwen2", "gemma", "mixtral", "gpt_neox", "gpt_j"}
# Of ETC's masks: a block of the text, its global tokens, both together.
OF_PARTS = {"bigbird_etc": {84, 256, 256 + LENGTH}}
# Made of the networks of another system.
OF_OTHERS = {"reward_model", "dpo", "instructgpt", "rule_model", "sparrow"}
DROPPING = sorted({*systems.names()} - WITHOUT - OF_OTHERS)


@pytest.mark.parametrize("broadcast", [True, False])
def test_a_mask_is_the_same_for_all_positions_or_for_none(broadcast):
    drop = make_dropout(Compute(dropout=0.25, dropout_broadcast=broadcast))

    @jax.jit
    def dropped(x, key):
        return drop.apply({}, x, False, rngs={"dropout": key})

    x = np.asarray(dropped(np.ones((3, 50, 60), np.float32), jax.random.key(0)))
    kept = x != 0
    np.testing.assert_allclose(x[kept], 1 / 0.75, rtol=1e-6)
    # 9,000 draws, or 180: standard deviations of 0.0046 and 0.032, times four.
    np.testing.assert_allclose(kept.mean(), 0.75, atol=0.13 if broadcast else 0.019)
    assert (kept == kept[:, :1]).all() == broadcast
    assert not (kept == kept[:1]).all()  # rows of a batch never share one
    # Of two positions the share on which masks agree: 1, or 0.75^2 + 0.25^2.
    agree = (kept[:, :-1] == kept[:, 1:]).mean()
    np.testing.assert_allclose(agree, 1.0 if broadcast else 0.625, atol=0.03)


@pytest.mark.parametrize("broadcast", [True, False])
def test_attention_drops_the_same_keys_for_all_queries_or_for_none(broadcast):
    keys = 64
    # Equal scores, and values that show which keys were read.
    eye = np.eye(keys, dtype=np.float32)
    values = np.broadcast_to(eye[None, :, None], (2, keys, 2, keys))

    @jax.jit
    def attend(query, values, key):
        return dense_core(
            query,
            KeyValues.from_positions(values, values),
            bias=None,
            mask=AttentionMask(),
            scale=1.0,
            dropout=0.25,
            dropout_rng=key,
            dropout_broadcast=broadcast,
        )

    out = attend(np.zeros((2, 20, 2, keys), np.float32), values, jax.random.key(0))
    kept = np.asarray(out) != 0  # [B, T, H, S]
    assert (kept == kept[:, :1]).all() == broadcast
    assert not (kept == kept[:, :, :1]).all()  # heads never share one
    # 256 draws or 5,120: standard deviations of 0.027 and 0.006, times four.
    np.testing.assert_allclose(kept.mean(), 0.75, atol=0.11 if broadcast else 0.025)


def random_shapes(jaxpr):
    """The shapes of all random numbers of a program."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "random_bits":
            yield eqn.params["shape"]
        for inner in jaxprs_in_params(eqn.params):
            yield from random_shapes(inner)


def settings(name, **changes):
    size = next(iter(systems.find(name).sizes.values()))
    small = {key: SMALL[key] for key in size if key in SMALL}
    if "teacher" in size:
        small["teacher"] = size["teacher"] | {
            key: SMALL[key] for key in size["teacher"] if key in SMALL
        }
    return size | small | changes


@functools.cache
def masks(name, *, old=False):
    """Shapes of the dropout masks of sequences in a training step."""
    config = settings(name)
    if old:
        del config["dropout_broadcast"]
    module = systems.build(name, config)
    batch = module.example_batch(batch=2, length=LENGTH)
    key = jax.random.key(0)
    params = jax.eval_shape(module.init, key, batch)

    def run(params, key):
        return module.apply(params, batch, deterministic=False, rngs={"dropout": key})

    shapes = random_shapes(jax.make_jaxpr(run)(params, key).jaxpr)
    return {shape for shape in shapes if len(shape) > 2}


@pytest.mark.parametrize("name", DROPPING)
def test_every_system_drops_as_its_paper_and_code_do(name):
    expected = OF_PARTS.get(name, {1 if name in BROADCAST else LENGTH})
    assert {shape[-2] for shape in masks(name)} == expected
    # Attention's too, but in the Transformer of 2017, which has none there.
    assert any(len(shape) == 4 for shape in masks(name)) == (name != "transformer")


@pytest.mark.parametrize("name", ["bert", "distilbert", "bart"])
def test_a_run_from_before_the_setting_drops_as_it_did(name):
    assert {shape[-2] for shape in masks(name, old=True)} == {1}
    # A system may have other settings that came later besides.
    later = systems.find(name).older_defaults
    old = {"dropout": 0.1}
    assert systems.complete(name, old) == {**later, **old, "dropout_broadcast": True}
    given = {**later, "dropout_broadcast": False}
    assert systems.complete(name, given) == given


def test_settings_of_later_are_settings():
    for name in systems.names():
        system = systems.find(name)
        known = next(iter(system.sizes.values()))
        assert system.older_defaults.keys() <= known.keys()
        assert ("dropout" in known) == ("dropout_broadcast" in known)
