"""Stacks and whole networks: causality, packing, scanning, recomputing, caching."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import systems
from t5x_like.nn.attention.cache import LayerCache
from t5x_like.nn.stack import stack_layers, unstack_layers
from t5x_like.systems import t5
from t5x_like.training import flops

TINY = t5.SIZES["small"] | {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "d_kv": 4,
    "vocab_size": 64,
}
ARCHITECTURES = ["encoder_decoder", "shared_encoder_decoder", "decoder", "prefix_decoder"]
# Float32 sums of some tens of terms of order 1, in another order.
ROUNDING = 2e-5


@functools.cache
def make(**changes):
    module = systems.build("t5", TINY | changes)
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    return module, init(jax.random.key(0))


@functools.cache
def jitted(module, method="__call__"):
    def apply(params, *args, **kwargs):
        return module.apply({"params": params}, *args, method=method, **kwargs)

    return jax.jit(apply, static_argnames=("cache_length", "deterministic"))


def tokens(batch, length, *, seed=0):
    return np.random.default_rng(seed).integers(2, 64, (batch, length)).astype(np.int32)


def targets(batch):
    """Seven tokens a row, of which the first is the start token."""
    rows = tokens(batch, 7)
    rows[:, 0] = 0
    return rows


def example(architecture, *, batch=2):
    decoder = targets(batch)
    example = {"encoder_input_tokens": tokens(batch, 5, seed=1), "decoder_input_tokens": decoder}
    if architecture == "prefix_decoder":
        example["decoder_causal_attention"] = np.tile(np.arange(7) < 3, (batch, 1))
    return example


def changes_logits(module, params, batch, field, position):
    """Which target positions notice another token at `position` of `field`."""
    other = dict(batch)
    other[field] = batch[field].copy()
    other[field][:, position] += 1
    one, two = (np.asarray(jitted(module)(params, each)) for each in (batch, other))
    return (np.abs(one - two).max(axis=(0, 2)) > 0).tolist()


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])
def test_a_target_sees_itself_and_the_past_alone(architecture):
    module, params = make(architecture=architecture)
    batch = example(architecture)
    noticed = changes_logits(module, params, batch, "decoder_input_tokens", 4)
    assert noticed == [False] * 4 + [True] * 3


def test_causality_of_gradients():
    module, params = make(architecture="decoder")
    batch = example("decoder", batch=1)

    def logits_at(table, position):
        changed = {**params, "token_embedder": {"embedding": table}}
        # A token of its own per position, so that a row of the table is a position.
        own = {"decoder_input_tokens": np.arange(7)[None]}
        return module.apply({"params": changed}, {**batch, **own})[0, position].sum()

    gradient = np.asarray(
        jax.jit(jax.grad(logits_at), static_argnums=1)(params["token_embedder"]["embedding"], 3)
    )
    assert (np.abs(gradient[:7]).sum(-1) > 0).tolist() == [True] * 4 + [False] * 3


def test_all_targets_see_all_inputs_and_the_whole_prefix():
    module, params = make()
    batch = example("encoder_decoder")
    assert all(changes_logits(module, params, batch, "encoder_input_tokens", 4))
    module, params = make(architecture="prefix_decoder")
    batch = example("prefix_decoder")
    assert all(changes_logits(module, params, batch, "decoder_input_tokens", 2))
    noticed = changes_logits(module, params, batch, "decoder_input_tokens", 3)
    assert noticed == [False] * 3 + [True] * 4


def test_padding_changes_nothing():
    module, params = make()
    batch = example("encoder_decoder")
    padded = {
        "encoder_input_tokens": np.pad(batch["encoder_input_tokens"], ((0, 0), (0, 3))),
        "decoder_input_tokens": np.pad(batch["decoder_input_tokens"], ((0, 0), (0, 2))),
    }
    plain, longer = (np.asarray(jitted(module)(params, each)) for each in (batch, padded))
    np.testing.assert_allclose(longer[:, :7], plain, atol=ROUNDING)


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])
def test_packed_documents_are_as_if_alone(architecture):
    module, params = make(architecture=architecture)
    batch = example(architecture)
    apart = jitted(module)(params, batch)
    packed = {name: rows.reshape(1, -1) for name, rows in batch.items()}
    for side, length in (("encoder", 5), ("decoder", 7)):
        packed[f"{side}_segment_ids"] = np.repeat(np.array([[1, 2]]), length, axis=1)
        packed[f"{side}_positions"] = np.tile(np.arange(length), 2)[None]
    together = np.asarray(jitted(module)(params, packed))
    np.testing.assert_allclose(together.reshape(apart.shape), apart, atol=ROUNDING)


@functools.cache
def value_and_gradient(**changes):
    """Of the sum of the squares of all logits, by the parameters."""
    module, _ = make(**changes)

    def total(params):
        return (module.apply({"params": params}, example("encoder_decoder")) ** 2).sum()

    return jax.jit(jax.value_and_grad(total))


def test_kept_names_spare_their_products():
    _, params = make(loop="scan")

    def products(remat):
        return flops.count(value_and_gradient(loop="scan", remat=remat), params)

    every, some, least = products("full"), products("attention"), products("none")
    assert least < some < every
    program = str(
        jax.make_jaxpr(value_and_gradient(loop="scan", remat="attention_on_host"))(params)
    )
    assert "host" in program
    assert products("attention_on_host") == some
    assert products("query,key,value,context") == products("query,key@host,value,context") == some
    assert least < products("query,key,value,context,wi,wo") < some
    assert products("wi@host") == products("wi") < every


@pytest.mark.parametrize(
    "remat",
    [
        "none",
        "attention_on_host",
        "query,context@host,wi,wo",
        *(pytest.param(remat, marks=pytest.mark.slow) for remat in ("full", "dots")),
    ],
)
def test_scanned_is_looped_and_recomputed_is_kept(remat):
    _, params = make(loop="unroll")
    towers = {
        side: {**params[side], "layers": stack_layers(params[side]["layers"])}
        for side in ("encoder", "decoder")
    }
    stacked = {**params, **towers}
    value, gradient = value_and_gradient(loop="unroll")(params)
    stacked_value, stacked_gradient = value_and_gradient(loop="scan", remat=remat)(stacked)
    np.testing.assert_allclose(stacked_value, value, rtol=1e-5)
    layers = unstack_layers(stacked_gradient["decoder"]["layers"], layers=2)
    jax.tree.map(
        # The gradient sums hundreds of squares of order 10, in another order.
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3),
        layers,
        gradient["decoder"]["layers"],
    )


def prefill(module, params, batch, *, length, mask=None):
    inputs = [batch["encoder_input_tokens"]] if hasattr(module, "make_encoder") else []
    prompt = batch["decoder_input_tokens"][:, :length]
    return jitted(module, "prefill")(params, *inputs, prompt, cache_length=9, decoder_mask=mask)


@pytest.mark.parametrize("loop", ["scan", pytest.param("unroll", marks=pytest.mark.slow)])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_cached_is_uncached(architecture, loop):
    module, params = make(architecture=architecture, loop=loop)
    batch = example(architecture)
    full = np.asarray(jitted(module)(params, batch))
    logits, cache = prefill(module, params, batch, length=3)
    np.testing.assert_allclose(logits, full[:, 2], atol=ROUNDING)
    for position in range(3, 7):
        token = batch["decoder_input_tokens"][:, position : position + 1]
        logits, cache = jitted(module, "extend")(params, token, cache)
        np.testing.assert_allclose(np.asarray(logits)[:, 0], full[:, position], atol=ROUNDING)


@pytest.mark.parametrize("architecture", ["encoder_decoder", "prefix_decoder"])
def test_prompts_of_unequal_length_are_padded_on_the_left(architecture):
    module, params = make(architecture=architecture)
    batch = example(architecture)
    alone, cache = prefill(module, params, batch, length=3)
    token = np.array([[5], [6]])
    alone_next, _ = jitted(module, "extend")(params, token, cache)
    padded = {
        **batch,
        "decoder_input_tokens": np.pad(targets(2), ((0, 0), (2, 0))),
    }
    mask = np.tile(np.arange(5) >= 2, (2, 1))
    logits, cache = prefill(module, params, padded, length=5, mask=mask)
    np.testing.assert_allclose(logits, alone, atol=ROUNDING)
    logits, _ = jitted(module, "extend")(params, token, cache)
    np.testing.assert_allclose(logits, alone_next, atol=ROUNDING)


@pytest.mark.parametrize("loop", ["scan", "unroll"])
def test_beams_share_the_memory_of_their_prompt_and_change_places(loop):
    module, params = make(loop=loop)
    batch = example("encoder_decoder")
    _, cache = prefill(module, params, batch, length=3)
    extend = functools.partial(jitted(module, "extend"), params)
    first, second = np.array([[5], [6], [7], [8]]), np.array([[9], [10], [11], [12]])
    _, beams = extend(first, cache.repeat(2))
    rows = np.array([1, 0, 3, 3])
    found, beams = extend(second, beams.reorder(rows))
    # Each beam reads what a row of its own would read ...
    prompts = np.repeat(batch["decoder_input_tokens"][:, :3], 2, axis=0)
    alone = {
        "encoder_input_tokens": np.repeat(batch["encoder_input_tokens"], 2, axis=0),
        "decoder_input_tokens": np.concatenate([prompts, first[rows], second], axis=1),
    }
    np.testing.assert_allclose(found[:, 0], jitted(module)(params, alone)[:, -1], atol=ROUNDING)
    # ... and the encoder's output has its keys and values once.
    layers = jax.tree.leaves(beams.layers, is_leaf=lambda x: isinstance(x, LayerCache))
    assert {layer.own.key.shape[-4] for layer in layers} == {4}
    assert {layer.memory.key.shape[-4] for layer in layers} == {2}


def test_a_prompt_longer_than_the_cache_is_refused():
    module, params = make(architecture="decoder")
    batch = {"decoder_input_tokens": tokens(1, 10)}
    with pytest.raises(ValueError, match="cache_length=9"):
        prefill(module, params, batch, length=10)


def test_bfloat16_computes_low_and_keeps_high():
    module, params = make(dtype="bfloat16")
    logits = jitted(module)(params, example("encoder_decoder"))
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert logits.dtype == jnp.float32
    exact, _ = make()
    reference = jitted(exact)(params, example("encoder_decoder"))
    # Eight bits of mantissa through two layers, logits of order 1.
    np.testing.assert_allclose(logits, reference, atol=0.1)
    assert np.abs(np.asarray(logits) - reference).max() > 0


def test_one_hot_lookup_is_a_gather():
    gather, params = make(embedding_lookup="gather")
    product, _ = make(embedding_lookup="one_hot")
    batch = example("encoder_decoder")
    np.testing.assert_allclose(
        jitted(gather)(params, batch), jitted(product)(params, batch), atol=1e-6
    )


def test_dropout_needs_a_key_and_only_training_has_it():
    module, params = make(dropout=0.5)
    batch = example("encoder_decoder")
    quiet = [jitted(module)(params, batch) for _ in range(2)]
    np.testing.assert_array_equal(*quiet)
    noisy = [
        jitted(module)(params, batch, deterministic=False, rngs={"dropout": key})
        for key in jax.random.split(jax.random.key(1))
    ]
    assert not np.allclose(*noisy)


def test_unknown_choices_name_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'dots'"):
        make(remat="dot")
    with pytest.raises(ValueError, match="Did you mean 'query'"):
        make(remat="key,quary@host")
    with pytest.raises(ValueError, match="Did you mean 'value'"):
        make(remat="values")
    with pytest.raises(ValueError, match="Did you mean 'unroll'"):
        make(loop="unrol")
