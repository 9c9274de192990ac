"""Switch Transformer: its published sizes, which layers are sparse, how it starts, its loss."""

import dataclasses
import functools
import inspect
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import switch as configs
from t5x_like import systems
from t5x_like.experiment.run import of_config
from t5x_like.nn import moe
from t5x_like.nn.attention.positions import AttentionMask
from t5x_like.nn.blocks import Shared
from t5x_like.systems import bert, switch, t5

# T5's published counts (tests/systems/test_t5.py), c's by hand, and for each sparse layer E - 1
# more feed-forwards and a router. In billions the paper has: tables 7 and 9.
COUNTS = {
    "base_8": (222_903_552 + 12 * (7 * 2 * 768 * 3072 + 8 * 768), None),
    "base_16": (222_903_552 + 12 * (15 * 2 * 768 * 3072 + 16 * 768), 1.1),
    "base_32": (222_903_552 + 12 * (31 * 2 * 768 * 3072 + 32 * 768), 2.0),
    "base_64": (222_903_552 + 12 * (63 * 2 * 768 * 3072 + 64 * 768), 3.8),
    "base_128": (222_903_552 + 12 * (127 * 2 * 768 * 3072 + 128 * 768), 7.4),
    "base_256": (222_903_552 + 12 * (255 * 2 * 768 * 3072 + 256 * 768), 14.7),
    "large_128": (737_668_096 + 24 * (127 * 2 * 1024 * 4096 + 128 * 1024), 26),
    "xxl_128": (11_135_332_352 + 24 * (127 * 3 * 4096 * 10240 + 128 * 4096), 395),
    "c_2048": (
        30 * (2048 * 2 * 2080 * 6144 + 2048 * 2080)  # experts and routers
        + 45 * 4 * 2080 * 30 * 64  # attention
        + (2 * 15 + 3 * 15 + 2) * 2080  # norms
        + 2 * 32 * 30  # position biases
        + 2 * 32128 * 2080,  # embeddings and output layer
        1571,
    ),
}
TINY = switch.SIZES["base_8"] | {
    "vocab_size": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "d_kv": 8,
    "experts": 4,
    "group_size": 0,
}
DECODER = {"architecture": "decoder"}
ONE = {"architecture": "decoder", "decoder_layers": 1, "sparse_every": 1}  # one layer, and sparse
# Float32 sums of some tens of terms of order 1, in another order.
ROUNDING = 2e-5


def count(tree):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


@functools.cache
def shapes(size):
    module = systems.build("switch", switch.SIZES[size])
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    return nn.unbox(boxed)["params"]


@pytest.mark.parametrize("size", switch.SIZES)
def test_parameters_as_published(size):
    exactly, billions = COUNTS[size]
    assert count(shapes(size)) == exactly
    if billions is not None:
        assert round(exactly / 1e9, 1 if isinstance(billions, float) else None) == billions


@pytest.mark.parametrize("tower", ["encoder", "decoder"])
def test_the_second_layer_of_two_is_sparse_and_in_c_every_one(tower):
    pair = shapes("base_8")[tower]["layers"]["block"]
    assert set(pair["block_0"]["feed_forward"]) == {"wi", "wo"}
    assert set(pair["block_1"]["feed_forward"]) == {"router", "experts"}
    assert set(shapes("c_2048")[tower]["layers"]["block"]["feed_forward"]) == {"router", "experts"}


@pytest.mark.parametrize("size", ["demo", *switch.SIZES])
def test_the_configs_are_valid(size):
    made = configs.get_config(size)
    of_config(made)
    systems.build(made.system, made.model.to_dict())
    known = inspect.signature(switch.loss).parameters
    assert set(made.loss) <= set(known)


def test_the_error_of_an_unknown_size_lists_the_sizes():
    with pytest.raises(ValueError, match=r"configs/switch.py has no size 'base': .*demo, base_8"):
        configs.get_config("base")


def test_a_token_passes_through_as_many_parameters_as_in_t5():
    sparse, dense = (system.SIZES[size] for system, size in ((switch, "base_8"), (t5, "v1_0_base")))
    others = ("dropout", "quantization")  # Switch has another rate, and no 8-bit products
    assert {name: sparse[name] for name in dense if name not in others} == {
        name: value for name, value in dense.items() if name not in others
    }


def build(**changes):
    return systems.build("switch", TINY | changes)


@functools.cache
def made(**changes):
    module = build(**changes)
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    return module, init(jax.random.key(0))


def text(*, rows=3, length=12, seed=0):
    tokens = np.random.default_rng(seed).integers(1, 32, (rows, length + 1))
    return {
        "encoder_input_tokens": tokens[:, ::-1].copy(),
        "decoder_input_tokens": tokens[:, :-1],
        "decoder_target_tokens": tokens[:, 1:],
        "decoder_loss_weights": np.ones((rows, length)),
    }


def test_kernels_are_initialized_smaller_by_the_root_of_ten_and_truncated_at_two_deviations():
    _, params = made(d_model=128, d_ff=192, heads=4, experts=64, **DECODER)
    block = params["decoder"]["layers"]["block"]
    attention, sparse = block["block_0"]["self_attention"], block["block_1"]["feed_forward"]
    initialized = {
        (0.1 / 128) ** 0.5: [
            attention["key"]["kernel"],
            block["block_0"]["feed_forward"]["wi"]["kernel"],
            sparse["experts"]["wi"]["kernel"],
            sparse["router"]["kernel"],
        ],
        (0.1 / 192) ** 0.5: [sparse["experts"]["wo"]["kernel"]],
        # Of the query the root of K too, in place of a division of the scores.
        (0.1 / 128 / 8) ** 0.5: [attention["query"]["kernel"]],
        (0.1 / 32) ** 0.5: [attention["out"]["kernel"]],
    }
    for deviation, kernels in initialized.items():
        for kernel in map(np.asarray, kernels):
            # Of 4,000 numbers and more the deviation is known to a hundredth or two.
            np.testing.assert_allclose(kernel.std(), deviation, rtol=0.05)
            cut = 2 * deviation / 0.8796  # what is cut has a smaller deviation
            assert 0.9 * cut < np.abs(kernel).max() <= 1.0001 * cut
    np.testing.assert_allclose(np.std(params["token_embedder"]["embedding"]), 1.0, rtol=0.05)


def test_the_loss_has_what_all_routers_cost_for_each_token():
    every = {"encoder_layers": 1, "decoder_layers": 1, "sparse_every": 1}
    (module, params), batch = made(**every), text()
    batch["decoder_loss_weights"][0, 5:] = 0

    @jax.jit
    def cost(params, balance, z):
        def loss(params):
            found = switch.loss(module, params, batch, None, load_balance=balance, router_z_loss=z)
            return found[0], found

        return jax.grad(loss, has_aux=True)(params)

    gradient, (total, weight, metrics) = cost(params, 0.3, 0.2)
    assert float(weight) == 29
    means = {name: np.asarray(value / number) for name, (value, number) in metrics.items()}
    load = means["expert_load"]
    assert load.shape == (2, 4)
    np.testing.assert_allclose(load.sum(axis=1), 1.0, rtol=1e-6)
    assert means["tokens_dropped"].shape == (2,)
    # The metrics are the mean of the two layers.
    of_routers = 2 * (0.3 * means["load_balance"] + 0.2 * means["router_z"])
    np.testing.assert_allclose(total / weight, means["cross_entropy"] + of_routers, rtol=1e-5)
    for n, tower in enumerate(("encoder", "decoder")):
        sparse = gradient[tower]["layers"]["block"]["feed_forward"]
        assert np.abs(sparse["router"]["kernel"]).max() > 0
        for kernel in jax.tree.leaves(sparse["experts"]):
            assert (np.abs(kernel[0]).max(axis=(1, 2)) > 0).tolist() == (load[n] > 0).tolist()
    _, (total, _, metrics) = cost(params, 0.0, 0.0)
    np.testing.assert_allclose(total, metrics["cross_entropy"][0], rtol=1e-6)


@pytest.mark.parametrize("setting", ["expert_dropout", "jitter"])
def test_each_kind_of_noise_is_there_in_training(setting):
    noise = {"expert_dropout": 0.0, "jitter": 0.0, setting: 0.4}
    module, params = build(**ONE, **noise), made(**ONE)[1]
    loss = jax.jit(lambda rng: switch.loss(module, params, text(), rng)[0])
    one, again, other = (float(loss(jax.random.key(seed))) for seed in (0, 0, 1))
    assert one == again != other


@pytest.mark.parametrize(("router", "causal"), [("switch", True), ("expert_choice", False)])
def test_later_tokens_take_no_slots_of_earlier_ones_where_tokens_choose(router, causal):
    module, params = made(**ONE, router=router, eval_capacity_factor=0.5)
    # The same text, but for one token, which is another in each row.
    tokens = np.repeat(text(rows=1)["decoder_input_tokens"], 31, axis=0)
    tokens[:, 7] = np.arange(1, 32)
    apply = jax.jit(functools.partial(module.apply, mutable=["routing"]))
    step_logits, sown = apply({"params": params}, {"decoder_input_tokens": tokens})
    assert float(moe.collect(sown["routing"])["dropped"][0]) > 0.3
    assert np.unique(step_logits[:, 7], axis=0).shape[0] == 31
    assert bool((step_logits[:, :7] == step_logits[:1, :7]).all()) == causal


def test_with_a_cache_and_slots_for_all_as_without():
    module, params = made(eval_capacity_factor=4.0, **DECODER)
    tokens = text(rows=2)["decoder_input_tokens"]
    variables = {"params": params}
    full = jax.jit(module.apply)(variables, {"decoder_input_tokens": tokens})
    prompt = np.pad(tokens[:, :7], ((0, 0), (2, 0)))
    real = np.pad(np.ones((2, 7), bool), ((0, 0), (2, 0)))
    prefill = jax.jit(functools.partial(module.apply, cache_length=14, method="prefill"))
    extend = jax.jit(functools.partial(module.apply, method="extend"))
    step_logits, cache = prefill(variables, prompt, decoder_mask=real)
    np.testing.assert_allclose(step_logits, full[:, 6], atol=ROUNDING)
    for place in range(7, 12):
        step_logits, cache = extend(variables, tokens[:, place : place + 1], cache)
        np.testing.assert_allclose(step_logits[:, 0], full[:, place], atol=ROUNDING)


def test_a_router_may_go_by_the_tokens_and_need_no_slots():
    params, batch = made(**ONE, router="hash")[1], {"decoder_input_tokens": np.full((2, 8), 5)}
    slots, none = (
        jax.jit(
            functools.partial(build(**ONE, router="hash", **settings).apply, mutable="routing")
        )({"params": params}, batch)
        for settings in ({"expert_capacity": 8}, {"dispatch": "dropless"})
    )
    np.testing.assert_allclose(slots[0], none[0], atol=ROUNDING)
    for _, sown in (slots, none):  # one token, one expert
        assert sorted(moe.collect(sown["routing"])["load"][0].tolist()) == [0, 0, 0, 1]


@pytest.mark.parametrize("router", ["switch", "top2", "expert_choice", "hash", "random"])
def test_a_router_has_parameters_where_it_learns(router):
    module = build(**ONE, router=router)
    found = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())["params"]
    learns = router not in ("hash", "random")
    assert ("router" in found["decoder"]["layers"]["block"]["feed_forward"]) == learns


def test_the_post_norm_layers_of_an_encoder_can_be_sparse_and_learn():
    settings = dataclasses.replace(bert.SIZES["base"], d_model=16, heads=2, dropout=0.0)
    block = functools.partial(
        bert.block(settings),
        make_feed_forward=functools.partial(
            moe.SparseFeedForward,
            make_router=functools.partial(moe.SwitchRouter, experts=4),
            make_experts=functools.partial(moe.Experts, experts=4, hidden=24),
        ),
    )()
    x, wanted = np.random.default_rng(0).standard_normal((2, 4, 12, 16)).astype(np.float32)
    shared = Shared(mask=AttentionMask())

    @jax.jit
    def step(params):
        def loss(params):
            return jnp.mean((block.apply({"params": params}, x, shared, None)[0] - wanted) ** 2)

        found, gradient = jax.value_and_grad(loss)(params)
        return found, gradient, jax.tree.map(lambda p, g: p - 0.3 * g, params, gradient)

    init = jax.jit(lambda key: nn.unbox(block.init(key, x, shared, None))["params"])
    params, found = init(jax.random.key(0)), []
    for _ in range(40):
        loss, gradient, params = step(params)
        assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient["feed_forward"]))
        found.append(float(loss))
    assert found[-1] < 0.8 * found[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"router": "switsch"}, r"model.router='switsch' .*Did you mean 'switch'"),
        ({"dispatch": "dropples"}, r"model.dispatch='dropples' .*Did you mean 'dropless'"),
        ({"sparse_every": 3}, r"model.encoder_layers=2 must be a multiple of model.sparse_every=3"),
        ({"experts": 0}, r"model.experts=0 must be an integer, 1 or more"),
        ({"init_scale": 0.0}, r"model.init_scale=0.0 must be above 0"),
        ({"expertz": 8}, r"model.expertz is not a setting of switch.*Did you mean 'experts'"),
    ],
)
def test_settings_that_make_no_sense_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        made(**change)
