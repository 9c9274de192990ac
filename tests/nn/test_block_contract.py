"""What systems may build on the contract of blocks: trees as carry, shared and per-layer arrays."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.nn import stack
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import AttentionMask
from t5x_like.nn.blocks import PreNormBlock, Shared
from t5x_like.nn.compute import Compute
from t5x_like.nn.linear import MLP, LayerNorm
from t5x_like.nn.networks import Tower
from t5x_like.nn.stack import LayerGroup, Stack, unstack_layers
from t5x_like.systems.albert import SharedStack

LENGTH, WIDTH = 5, 8
X = jnp.asarray(np.random.default_rng(0).standard_normal((2, LENGTH, WIDTH)), jnp.float32)
ATTENTION = functools.partial(Attention, heads=2, width=4)
# Float32 sums of some tens of terms of order 1, in another order.
ROUNDING = 2e-5


class TwoStreams(nn.Module):
    """Two-stream attention (Yang et al. 2019, section 2.3), without its feed-forward."""

    @nn.compact
    def __call__(self, carry, shared, per_layer):
        attention = ATTENTION()
        content, query = carry["content"], carry["query"]
        keys_values = attention.keys_values(content)
        carry = {
            "content": content + attention(content, keys_values, mask=shared.mask),
            "query": query + attention(query, keys_values, mask=shared.extra["query_mask"]),
        }
        if shared.collect:
            return carry, shared.collected(carry, None)
        return carry, per_layer


class MakeStreams(nn.Module):
    """The first carry: a content stream of the tokens, and a query stream that is the same."""

    @nn.compact
    def __call__(self, x, positions):
        start = self.param("start", nn.initializers.normal(1.0), (x.shape[-1],))
        return {"content": x, "query": jnp.broadcast_to(start, x.shape)}


class QueryStream(nn.Module):
    """The output of the query stream."""

    def __call__(self, carry):
        return carry["query"]


class QueryMask(nn.Module):
    """A mask under which no query sees its own content."""

    def __call__(self, shared):
        return {"query_mask": AttentionMask(offset=-1, visibility="causal")}


def two_streams(loop, *, group=1):
    make_block = TwoStreams
    if group > 1:
        make_block = functools.partial(LayerGroup, make_blocks=(TwoStreams,) * group)
    return Tower(
        make_stack=functools.partial(
            Stack, make_block=make_block, layers=4 // group, compute=Compute(loop=loop)
        ),
        make_entrance=MakeStreams,
        make_exit=QueryStream,
        make_extra=QueryMask,
        compute=Compute(dropout=0.5),
    )


CAUSAL = Shared(mask=AttentionMask(visibility="causal"))


@functools.cache
def params_of_streams(loop, group=1):
    module = two_streams(loop, group=group)
    return jax.jit(lambda key: nn.unbox(module.init(key, X, CAUSAL)))(jax.random.key(0))


@pytest.mark.parametrize(("loop", "group"), [("scan", 1), ("unroll", 1), ("scan", 2)])
def test_a_tower_carries_two_streams(loop, group):
    module = two_streams(loop, group=group)
    apply = jax.jit(lambda params, x: module.apply(params, x, CAUSAL)[0])
    params = params_of_streams(loop, group)
    out = apply(params, X)
    assert out.shape == X.shape
    moved = np.abs(apply(params, X.at[:, 2].add(1.0)) - out).max(axis=(0, 2)) > 1e-5
    # The query stream of a place does not see its own content; the first place sees none at all,
    # and so a mean of all.
    assert moved.tolist() == [True, False, False, True, True]


def test_two_streams_are_collected_and_dropped():
    module = two_streams("scan")
    shared = Shared(mask=CAUSAL.mask, collect=("hidden_states",), deterministic=False)
    out, collected = module.apply(
        params_of_streams("scan"), X, shared, rngs={"dropout": jax.random.key(0)}
    )
    states = collected.hidden_states
    assert jax.tree.map(jnp.shape, states) == dict.fromkeys(
        ("content", "query"), (5, 2, LENGTH, WIDTH)
    )
    np.testing.assert_array_equal(states["query"][4], out)
    assert all(0.2 < jnp.mean(states[name][0] == 0) < 0.8 for name in states)


def test_scanned_streams_are_the_looped_ones():
    params = params_of_streams("scan")
    layers = unstack_layers(params["params"]["layers"], layers=4)
    looped = {"params": params["params"] | {"layers": layers}}
    one = jax.jit(two_streams("scan").apply)(params, X, CAUSAL)[0]
    two = jax.jit(two_streams("unroll").apply)(looped, X, CAUSAL)[0]
    np.testing.assert_allclose(one, two, atol=ROUNDING)


def test_auto_on_a_cpu_has_the_scanned_parameters_and_compiles_each_of_a_few_layers(monkeypatch):
    params = params_of_streams("scan")

    def program(loop):
        def loss(params):
            return jnp.sum(two_streams(loop).apply(params, X, CAUSAL)[0] ** 2)

        # A function of its own for each: the choice of `auto` is no argument of the trace.
        return jax.jit(jax.value_and_grad(loss)).lower(params)

    scanned = program("scan")
    monkeypatch.setattr(stack, "_FEW", 4)
    chosen = program("auto")
    assert scanned.as_text().count("stablehlo.while") == 2  # forward and backward
    assert "stablehlo.while" not in chosen.as_text()
    expected, found = (one.compile()(params) for one in (scanned, chosen))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=ROUNDING, rtol=1e-5), found, expected
    )
    monkeypatch.setattr(stack, "_FEW", 3)
    assert "stablehlo.while" in program("auto").as_text()


@pytest.mark.parametrize(
    ("platform", "remat", "layers", "expected"),
    [
        ("cpu", "full", 4, True),
        ("cpu", "none", 5, False),
        ("cuda", "none", 4, True),
        ("cuda", "full", 4, False),
        ("tpu", "none", 2, False),
    ],
)
def test_auto_unrolls_a_few_layers_on_cpus_and_without_remat_on_gpus(
    monkeypatch, platform, remat, layers, expected
):
    monkeypatch.setattr(stack, "_FEW", 4)
    monkeypatch.setattr(stack.partitioning, "platform", lambda: platform)
    assert stack.unrolls(Compute(remat=remat, loop="auto"), layers) is expected
    assert stack.unrolls(Compute(remat=remat, loop="unroll"), layers)
    assert not stack.unrolls(Compute(remat=remat, loop="scan"), layers)


def test_auto_initializes_in_a_loop_with_the_parameters_of_a_scan(monkeypatch):
    """Compiling the draws of each layer separately would take longer than compiling a step."""
    monkeypatch.setattr(stack, "_FEW", 4)
    auto, scanned = (
        jax.jit(lambda loop=loop: two_streams(loop).init(jax.random.key(0), X, CAUSAL)).lower()
        for loop in ("auto", "scan")
    )
    assert auto.as_text().count("stablehlo.while") == scanned.as_text().count("stablehlo.while")
    jax.tree.map(np.testing.assert_array_equal, auto.compile()(), scanned.compile()())


class Adds(nn.Module):
    """Adds the layer's own numbers to the carry, and returns their sum."""

    @nn.compact
    def __call__(self, carry, shared, per_layer):
        gain = self.param("gain", nn.initializers.ones, ())
        carry = jax.tree.map(lambda x: x + gain * per_layer["step"] * shared, carry)
        return carry, {"sum": per_layer["step"].sum()}


@pytest.mark.parametrize("loop", ["scan", "unroll"])
@pytest.mark.parametrize(
    "kind", [Stack, functools.partial(SharedStack, parts=("gain",))], ids=["own", "shared"]
)
def test_every_stack_takes_trees(loop, kind):
    layers = kind(make_block=Adds, layers=3, compute=Compute(loop=loop))
    steps = {"step": jnp.arange(6.0).reshape(3, 2)}
    per_layer = layers.split(steps)
    carry = ({"a": jnp.zeros(2)}, jnp.ones(2))
    shared = jnp.asarray(2.0)
    params = layers.init(jax.random.key(0), carry, shared, per_layer)
    (first, second), outs = layers.apply(params, carry, shared, per_layer)
    np.testing.assert_array_equal(first["a"], 2.0 * steps["step"].sum(axis=0))
    np.testing.assert_array_equal(second, first["a"] + 1)
    sums = outs["sum"] if isinstance(outs, dict) else jnp.stack([out["sum"] for out in outs])
    np.testing.assert_array_equal(sums, steps["step"].sum(axis=1))


def test_a_looped_stack_refuses_what_is_not_split():
    layers = Stack(make_block=Adds, layers=3, compute=Compute(loop="unroll"))
    with pytest.raises(ValueError, match=r"tuple of 3 trees.*`split`"):
        layers.init(jax.random.key(0), jnp.zeros(2), 1.0, {"step": jnp.zeros((3, 2))})


class Disentangled(Attention):
    """He et al. 2020 (DeBERTa), equation 4: content and distance see each other both ways."""

    def prepare_scores(self, query, keys_values, bias, *, mask, extra):
        table = extra["relative"]  # [2 * LENGTH - 1, D], of query minus key from 1 - LENGTH on
        place = jnp.arange(LENGTH)[:, None] - jnp.arange(LENGTH)[None, :] + LENGTH - 1
        of_key, of_query = self.key(table)[place], self.query(table)[place]
        content_to_position = jnp.einsum("BTHK,TSHK->BHTS", query, of_key)
        position_to_content = jnp.einsum("BHSK,TSHK->BHTS", keys_values.key, of_query)
        return query, (content_to_position + position_to_content) * self.scale_factor


class RelativeTable(nn.Module):
    """The vectors of distances, which all layers share."""

    @nn.compact
    def __call__(self, shared):
        init = nn.initializers.normal(1.0)
        return {"relative": self.param("relative", init, (2 * LENGTH - 1, WIDTH))}


def test_scores_may_depend_on_the_keys_and_a_table_of_all_layers():
    module = Tower(
        make_stack=functools.partial(
            Stack,
            make_block=functools.partial(
                PreNormBlock,
                make_norm=LayerNorm,
                make_self_attention=functools.partial(Disentangled, heads=2, width=4),
                make_feed_forward=functools.partial(MLP, hidden=6),
            ),
            layers=2,
            compute=Compute(remat="full"),
        ),
        make_extra=RelativeTable,
    )
    shared = Shared(mask=AttentionMask(), collect=("hidden_states", "attention_scores"))
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), X, shared))["params"]
    _, collected = jax.jit(module.apply)({"params": params}, X, shared)
    table = params["extra"]["relative"]
    for layer in (0, 1):
        block = jax.tree.map(lambda x, n=layer: x[n], params["layers"]["block"])
        read = LayerNorm().apply(
            {"params": block["self_attention_norm"]}, collected.hidden_states[layer]
        )
        content, distance = (
            {
                name: np.einsum("...D,DHK->...HK", x, block["self_attention"][name]["kernel"])
                for name in ("query", "key")
            }
            for x in (read, table)
        )
        for t, s in ((0, 0), (1, 4), (3, 2)):
            d = t - s + LENGTH - 1
            query, key = content["query"][:, t], content["key"][:, s]
            expected = query * key + query * distance["key"][d] + key * distance["query"][d]
            np.testing.assert_allclose(
                collected.attention_scores[layer, :, :, t, s],
                expected.sum(axis=-1) * 0.5,
                atol=ROUNDING,
            )


def test_a_cache_and_something_to_collect_are_refused():
    block = PreNormBlock(
        make_norm=LayerNorm,
        make_self_attention=ATTENTION,
        make_feed_forward=functools.partial(MLP, hidden=6),
    )
    shared = Shared(mask=AttentionMask(), collect=("hidden_states",))
    with pytest.raises(ValueError, match="without a key-value cache"):
        block.init(jax.random.key(0), X, shared, block.empty_cache(batch=2, slots=LENGTH))
