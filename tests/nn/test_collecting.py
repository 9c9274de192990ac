"""Hidden states and attention scores of all layers, on request and at no cost without."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import systems
from t5x_like.nn.attention.cores import MASKED, masked_as_zero
from t5x_like.nn.attention.kernels import cudnn_core
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.blocks import PostNormBlock, constrain_residual, self_attend
from t5x_like.nn.compute import Compute
from t5x_like.nn.linear import MLP, LayerNorm
from t5x_like.nn.networks import Tower
from t5x_like.nn.stack import Stack, unstack_layers
from t5x_like.systems import albert, bart, bert, gpt3, t5

BOTH = ("hidden_states", "attention_scores")
SMALL = {
    "vocab_size": 32,
    "positions": 12,
    "layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "dropout": 0.0,
}
# Float32 sums of some tens of terms of order 1, in another order.
ROUNDING = 2e-5


def settings(system, **changes):
    size = next(iter(system.SIZES.values()))
    own = {"encoder_layers": 2, "decoder_layers": 2, "embedding": 8, "head_width": 8, "d_kv": 8}
    small = SMALL | own | {"head": "features", "window": 3}
    return size | {name: x for name, x in small.items() if name in size} | changes


@functools.cache
def make(system, **changes):
    module = systems.build(system.SYSTEM.name, settings(system, **changes))
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    # Larger than at first, so that scores are not all near 0.
    return module, jax.tree.map(lambda x: x * 5, jax.device_get(init(jax.random.key(0))))


def batch_of(side):
    tokens = jnp.asarray(np.random.default_rng(0).integers(5, 32, (2, 6)))
    segments = jnp.asarray([[1] * 6, [1] * 4 + [0] * 2])
    return {f"{side}_input_tokens": tokens, f"{side}_segment_ids": segments}


def collect(module, params, batch, names=BOTH):
    run = jax.jit(functools.partial(module.apply, collect=names))
    return run({"params": params}, batch)


def test_states_begin_with_the_input_of_the_first_layer_and_end_with_the_output():
    module, params = make(bert)
    outputs, collected = collect(module, params, batch_of("encoder"))
    states = collected["encoder"].hidden_states
    assert states.shape == (3, 2, 6, 16)
    np.testing.assert_array_equal(states[2], outputs["hidden"])
    embed = jax.jit(functools.partial(module.apply, method="embed"))
    first = embed({"params": params}, batch_of("encoder"))
    np.testing.assert_allclose(states[0], first, atol=ROUNDING)
    plain = jax.jit(module.apply)({"params": params}, batch_of("encoder"))
    np.testing.assert_allclose(outputs["hidden"], plain["hidden"], atol=ROUNDING)


def test_scores_are_the_scaled_products_of_queries_and_keys():
    module, params = make(bert)
    _, collected = collect(module, params, batch_of("encoder"))
    states, scores = (np.asarray(getattr(collected["encoder"], name)) for name in BOTH)
    assert scores.shape == (2, 2, 2, 6, 6)
    assert scores.dtype == jnp.float32
    for layer in (0, 1):
        own = jax.tree.map(lambda x, n=layer: x[n], params["encoder"]["layers"]["block"])
        query, key = (
            np.einsum("BLD,DHK->BHLK", states[layer], own["self_attention"][name]["kernel"])
            + own["self_attention"][name]["bias"][None, :, None]
            for name in ("query", "key")
        )
        expected = np.einsum("BHTK,BHSK->BHTS", query, key) * 8**-0.5
        np.testing.assert_allclose(scores[layer, 0], expected[0], atol=1e-4, rtol=1e-4)
        np.testing.assert_allclose(
            scores[layer, 1, ..., :4], expected[1, ..., :4], atol=1e-4, rtol=1e-4
        )


def test_masked_scores_are_known_and_can_be_zero():
    module, params = make(bert)
    scores = collect(module, params, batch_of("encoder"))[1]["encoder"].attention_scores
    padding = np.zeros(scores.shape, bool)
    padding[:, 1, ..., 4:] = True
    np.testing.assert_array_equal(scores == MASKED, padding)
    np.testing.assert_array_equal(masked_as_zero(scores), jnp.where(padding, 0.0, scores))


@pytest.mark.parametrize("names", [("hidden_states",), ("attention_scores",)])
def test_each_can_be_collected_alone(names):
    module, params = make(bert)
    (collected,) = collect(module, params, batch_of("encoder"), names)[1].values()
    assert [name for name in BOTH if getattr(collected, name) is not None] == list(names)


@pytest.mark.parametrize("loop", ["scan", pytest.param("unroll", marks=pytest.mark.slow)])
def test_collecting_is_the_same_with_remat_and_has_gradients(loop):
    module, params = make(bert, loop=loop)
    recomputed, _ = make(bert, loop=loop, remat="full")

    def total(params, module):
        collected = module.apply({"params": params}, batch_of("encoder"), collect=BOTH)[1]
        scores = masked_as_zero(collected["encoder"].attention_scores)
        return jnp.mean(collected["encoder"].hidden_states ** 2) + jnp.mean(scores**2)

    one, two = (jax.jit(jax.grad(functools.partial(total, module=m))) for m in (module, recomputed))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=ROUNDING), one(params), two(params)
    )


def assert_same(one, two):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4, rtol=1e-4), one, two)


def test_scanned_layers_collect_what_looped_ones_do():
    module, params = make(bert)
    looped, _ = make(bert, loop="unroll")
    layers = unstack_layers(params["encoder"]["layers"], layers=2)
    unstacked = params | {"encoder": {"layers": layers}}
    one = collect(module, params, batch_of("encoder"))
    assert_same(one, collect(looped, unstacked, batch_of("encoder")))


def test_layers_in_groups_are_in_their_order():
    module, params = make(gpt3, layers=4)
    looped, _ = make(gpt3, layers=4, loop="unroll")
    layers = unstack_layers(params["decoder"]["layers"], layers=2)
    unstacked = params | {"decoder": params["decoder"] | {"layers": layers}}
    logits, collected = collect(module, params, batch_of("decoder"))
    assert logits.shape == (2, 6, 32)
    assert collected["decoder"].hidden_states.shape == (5, 2, 6, 16)
    # Of each pair of layers the second sees the last three keys alone.
    hidden = collected["decoder"].attention_scores[:, 0, 0, 5] == MASKED
    assert hidden.sum(axis=-1).tolist() == [0, 3, 0, 3]
    assert_same((logits, collected), collect(looped, unstacked, batch_of("decoder")))


def test_layers_with_shared_parameters():
    module, params = make(albert, layers=3)
    outputs, collected = collect(module, params, batch_of("encoder"))
    assert collected["encoder"].attention_scores.shape == (3, 2, 2, 6, 6)
    np.testing.assert_array_equal(collected["encoder"].hidden_states[3], outputs["hidden"])


@pytest.mark.parametrize("loop", ["scan", pytest.param("unroll", marks=pytest.mark.slow)])
def test_both_sides_of_an_encoder_decoder(loop):
    module, params = make(t5, loop=loop)
    batch = {**batch_of("encoder"), "decoder_input_tokens": jnp.ones((2, 4), int)}
    logits, collected = collect(module, params, batch)
    assert logits.shape == (2, 4, 32)
    shapes = {side: jax.tree.map(jnp.shape, each) for side, each in collected.items()}
    assert shapes["encoder"].hidden_states == (3, 2, 6, 16)
    assert shapes["encoder"].cross_attention_scores is None
    assert shapes["decoder"].hidden_states == (3, 2, 4, 16)
    assert shapes["decoder"].attention_scores == (2, 2, 2, 4, 4)
    assert shapes["decoder"].cross_attention_scores == (2, 2, 2, 4, 6)


def test_a_classifier_with_an_encoder_and_a_decoder():
    module, params = make(bart)
    outputs, collected = collect(module, params, batch_of("encoder"))
    np.testing.assert_array_equal(collected["decoder"].hidden_states[2], outputs["hidden"])
    assert collected["encoder"].hidden_states.shape == (3, 2, 6, 16)


class PlainBlock(PostNormBlock):
    """The layer as it would be if nothing could be collected."""

    def __call__(self, x, shared, cache):
        y, _, _ = self_attend(self.self_attention, x, shared, cache)
        x = constrain_residual(self.self_attention_norm(x + self.drop(y, shared.deterministic)))
        y = self.feed_forward(x, tokens=shared.tokens, deterministic=shared.deterministic)
        x = constrain_residual(self.feed_forward_norm(x + self.drop(y, shared.deterministic)))
        return x, None


@pytest.mark.parametrize("loop", ["scan", "unroll"])
def test_nobody_pays_who_does_not_ask(loop):
    """The program of a network equals one whose layers cannot return anything."""

    def program(make_block):
        module = systems.build("bert", settings(bert, loop=loop))
        stack = functools.partial(
            Stack,
            make_block=functools.partial(
                make_block, **bert.block(bert.BertConfig(**settings(bert))).keywords
            ),
            layers=2,
            compute=Compute(loop=loop),
        )
        module = module.clone(make_encoder=functools.partial(Tower, make_stack=stack))
        params = make(bert, loop=loop)[1]

        def loss(params):
            return module.apply({"params": params}, batch_of("encoder"))["hidden"].sum()

        return jax.jit(jax.grad(loss)).lower(params).as_text()

    assert program(PostNormBlock) == program(PlainBlock)


def test_only_the_dense_core_has_scores():
    stack = functools.partial(
        Stack,
        make_block=functools.partial(
            PostNormBlock,
            make_norm=LayerNorm,
            make_self_attention=functools.partial(
                Attention, heads=2, width=8, compute=Compute(core=cudnn_core)
            ),
            make_feed_forward=functools.partial(MLP, hidden=8),
        ),
        layers=1,
    )
    module = make(bert)[0].clone(make_encoder=functools.partial(Tower, make_stack=stack))
    with pytest.raises(ValueError, match=r"only the dense core.*model.attention='dense'"):
        jax.eval_shape(
            functools.partial(module.init, collect=BOTH), jax.random.key(0), batch_of("encoder")
        )


def test_an_unknown_name_is_named_with_the_nearest():
    module, params = make(bert)
    with pytest.raises(ValueError, match=r"collect='hidden_state'.*'hidden_states'"):
        module.apply({"params": params}, batch_of("encoder"), collect=("hidden_state",))
