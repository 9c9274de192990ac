"""Transformer-XL's positions: the equation, shifted texts, caches, and no array of all pairs."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from t5x_like.nn.attention.positions import AttentionMask
from t5x_like.nn.blocks import PreNormBlock
from t5x_like.nn.compute import Compute
from t5x_like.nn.embeddings import TiedHead, TokenEmbed
from t5x_like.nn.linear import MLP, RMSNorm
from t5x_like.nn.networks import Decoder, Tower
from t5x_like.nn.stack import Stack
from t5x_like.systems.transformer_xl import TransformerXLAttention

FEATURES, HEADS, WIDTH = 6, 2, 5
# Float32 sums of some tens of terms of order 1, in another order.
ROUNDING = 2e-5


def randomized(params):
    """The same with every vector random, those that begin as zeros too."""
    leaves, structure = jax.tree.flatten(nn.unbox(params))
    keys = jax.random.split(jax.random.key(7), len(leaves))
    values = [0.5 * jax.random.normal(key, x.shape) for key, x in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, values)


@functools.cache
def attention():
    module = TransformerXLAttention(heads=HEADS, width=WIDTH, features=FEATURES)

    def run(module, x, context, offset):
        mask = AttentionMask(offset=offset, visibility="causal")
        return module(x, module.keys_values(context), mask=mask)

    x = jnp.zeros((1, 2, 8))
    params = module.init(jax.random.key(0), x, x, 0, method=run)["params"]
    return functools.partial(module.apply, method=run), randomized(params)


def sines(distance):
    angles = distance / 10_000 ** (np.arange(0, FEATURES, 2) / FEATURES)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).ravel()


def by_the_equation(params, x, context, *, offset):
    """Queries in slots from `offset` on, keys in slots from 0 on, one pair at a time."""
    p = jax.tree.map(np.asarray, params)
    query, key, value = (
        np.einsum("BLD,DHK->BLHK", rows, p[name]["kernel"])
        for name, rows in (("query", x), ("key", context), ("value", context))
    )
    mixed = np.zeros_like(query)
    for b, t, h in np.ndindex(query.shape[:3]):
        scores = []
        for s in range(offset + t + 1):
            distance = sines(offset + t - s) @ p["distance_kernel"][:, h]
            content = (query[b, t, h] + p["content_bias"][h]) @ key[b, s, h]
            scores.append(content + (query[b, t, h] + p["distance_bias"][h]) @ distance)
        weights = np.exp(np.array(scores) / np.sqrt(WIDTH))
        mixed[b, t, h] = weights / weights.sum() @ value[b, : len(scores), h]
    return np.einsum("BTHK,HKD->BTD", mixed, p["out"]["kernel"])


# As in training, and as with a cache: some queries whose slot is traced, then slots without keys.
@pytest.mark.parametrize(("queries", "keys", "offset"), [(5, 5, 0), (3, 9, 4), (1, 9, 6)])
def test_scores_are_those_of_the_equation(queries, keys, offset):
    apply, params = attention()
    context = jax.random.normal(jax.random.key(1), (2, keys, 8))
    x = jax.random.normal(jax.random.key(2), (2, queries, 8))
    slot = offset if offset == 0 else jnp.asarray(offset)
    out = jax.jit(apply)({"params": params}, x, context, slot)
    expected = by_the_equation(params, x, context, offset=offset)
    np.testing.assert_allclose(out, expected, atol=ROUNDING)


def arrays_within(jaxpr):
    for equation in jaxpr.eqns:
        yield from ((equation.primitive.name, one.aval.shape) for one in equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            yield from arrays_within(inner)


@pytest.mark.parametrize(("queries", "keys"), [(16, 16), (1, 64)])
def test_no_array_holds_a_vector_for_each_pair_and_nothing_is_gathered(queries, keys):
    apply, params = attention()
    x, context = jnp.zeros((1, queries, 8)), jnp.zeros((1, keys, 8))

    def loss(params, x, context):
        return apply({"params": params}, x, context, 0).sum()

    jaxpr = jax.make_jaxpr(jax.grad(loss))(params, x, context).jaxpr
    arrays = list(arrays_within(jaxpr))
    assert "gather" not in {name for name, _ in arrays}
    # Scores of all pairs, padded, and per head; a vector for each would be 5 or 6 times as many.
    assert max(np.prod(shape) for _, shape in arrays) <= max(
        HEADS * queries * (keys + 1), keys * FEATURES, keys * HEADS * WIDTH
    )


def test_a_step_of_decoding_does_not_project_the_sines_of_all_slots():
    apply, params = attention()
    x, context = jnp.zeros((1, 1, 8)), jnp.zeros((1, 64, 8))
    jaxpr = jax.make_jaxpr(apply)({"params": params}, x, context, jnp.asarray(3)).jaxpr
    products = [shape for name, shape in arrays_within(jaxpr) if name == "dot_general"]
    projected = [shape for shape in products if sorted(shape) == sorted((64, HEADS, WIDTH))]
    assert projected == []


@functools.cache
def make(loop):
    block = functools.partial(
        PreNormBlock,
        make_norm=RMSNorm,
        make_self_attention=functools.partial(
            TransformerXLAttention, heads=4, width=4, features=16
        ),
        make_feed_forward=functools.partial(MLP, hidden=20),
    )
    module = Decoder(
        make_embedding=functools.partial(TokenEmbed, vocab_size=50, features=16),
        make_decoder=functools.partial(
            Tower,
            make_stack=functools.partial(
                Stack, make_block=block, layers=2, compute=Compute(loop=loop)
            ),
            make_norm=RMSNorm,
        ),
        make_head=TiedHead,
    )
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    return module, randomized(boxed["params"])


@functools.cache
def jitted(loop, method):
    module, _ = make(loop)
    return jax.jit(
        lambda params, *args, **kwargs: module.apply(
            {"params": params}, *args, **kwargs, method=method
        ),
        static_argnames="cache_length",
    )


def tokens(length):
    return jnp.asarray(np.random.default_rng(0).integers(0, 50, (2, length)), jnp.int32)


def test_where_a_text_begins_changes_nothing():
    (_, params), apply = make("scan"), jitted("scan", "__call__")
    text, before = tokens(7), 3
    alone = apply(params, {"decoder_input_tokens": text})
    padded = {
        "decoder_input_tokens": jnp.pad(text, ((0, 0), (before, 0)), constant_values=9),
        "decoder_segment_ids": jnp.pad(jnp.ones_like(text), ((0, 0), (before, 0))),
    }
    shifted = apply(params, padded)
    np.testing.assert_allclose(shifted[:, before:], alone, atol=ROUNDING)


def test_the_order_of_what_was_read_matters():
    (_, params), apply = make("scan"), jitted("scan", "__call__")
    text = tokens(7)
    swapped = text.at[:, jnp.array([1, 2])].set(text[:, jnp.array([2, 1])])
    one, two = (apply(params, {"decoder_input_tokens": each})[:, -1] for each in (text, swapped))
    assert np.abs(one - two).max() > 1e-2


def test_a_position_reads_nothing_of_what_comes_after_it():
    (_, params), apply = make("scan"), jitted("scan", "__call__")

    def logit(vectors):
        embedded = params | {"token_embedder": {"embedding": vectors}}
        batch = {"decoder_input_tokens": jnp.arange(8)[None]}
        return apply(embedded, batch)[0, 4, 40]

    gradient = jax.grad(logit)(params["token_embedder"]["embedding"])
    read = np.abs(gradient[:8]).max(axis=-1) > 0
    assert read.tolist() == [True] * 5 + [False] * 3


@pytest.mark.parametrize("loop", ["scan", pytest.param("unroll", marks=pytest.mark.slow)])
def test_with_a_cache_as_without_one(loop):
    _, params = make(loop)
    text, prompts = tokens(9), (5, 3)
    full = jitted(loop, "__call__")(params, {"decoder_input_tokens": text})
    real = jnp.arange(5)[None] >= 5 - jnp.array(prompts)[:, None]
    rows = jnp.stack([jnp.roll(text[n, :5], 5 - size) for n, size in enumerate(prompts)])
    prefill, extend = jitted(loop, "prefill"), jitted(loop, "extend")
    logits, cache = prefill(params, rows, decoder_mask=real, cache_length=12)
    for step, at_once in ((0, 1), (1, 1), (2, 2)):
        for n, size in enumerate(prompts):
            last = logits[n] if step == 0 else logits[n, -1]
            np.testing.assert_allclose(last, full[n, size + step - 1], atol=ROUNDING)
        new = jnp.stack([text[n, size + step :][:at_once] for n, size in enumerate(prompts)])
        logits, cache = extend(params, new, cache)
    for n, size in enumerate(prompts):
        np.testing.assert_allclose(logits[n], full[n, size + 2 : size + 4], atol=ROUNDING)
