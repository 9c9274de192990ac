"""Sparse feed-forwards: against a loop over tokens, without drops, in groups, in a stack."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import partitioning
from t5x_like.nn import moe
from t5x_like.nn.compute import Compute
from t5x_like.nn.linear import GLU, MLP
from t5x_like.nn.stack import LayerGroup, Stack, stack_layers
from t5x_like.training import flops

B, L, D, F, E = 4, 12, 8, 16, 4
X = np.random.default_rng(1).normal(size=(B, L, D)).astype(np.float32)


def sparse(
    router=moe.SwitchRouter,
    *,
    experts=E,
    gated=False,
    dropout=0.0,
    dtype=jnp.float32,
    **settings,
):
    return moe.SparseFeedForward(
        make_router=functools.partial(router, experts=experts),
        make_experts=functools.partial(
            moe.Experts,
            experts=experts,
            hidden=F,
            gated=gated,
            compute=Compute(dropout=dropout, dtype=dtype),
        ),
        **settings,
    )


def initial(module, x=X):
    return nn.unbox(jax.jit(module.init)(jax.random.key(0), x))["params"]


def run(module, params, x=X, **settings):
    @jax.jit
    def apply(params, x):
        y, sown = module.apply({"params": params}, x, mutable=["routing"], **settings)
        return y, moe.collect(sown["routing"])

    return apply(params, x)


@pytest.mark.parametrize(("gated", "dense"), [(False, MLP), (True, GLU)])
def test_the_output_is_that_of_a_loop_over_tokens(gated, dense):
    module = sparse(gated=gated, expert_capacity=3)
    params = initial(module)
    y, routing = run(module, params)
    one_expert = jax.jit(dense(hidden=F, activation=nn.relu).apply)
    probabilities = np.asarray(jax.jit(jax.nn.softmax)(X @ params["router"]["kernel"]))
    expected, dropped = np.zeros(X.shape, np.float32), 0
    computed = np.zeros((B, L, E), bool)
    experts = jax.device_get(params["experts"])
    for b in range(B):
        taken = np.zeros(E, int)
        for t in range(L):
            probability = probabilities[b, t]
            e = int(probability.argmax())
            taken[e] += 1
            dropped += taken[e] > 3
            if taken[e] <= 3:
                computed[b, t, e] = True
                own = jax.tree.map(lambda x, e=e: x[e], experts)
                expected[b, t] = one_expert({"params": own}, X[b, t]) * probability[e]
    np.testing.assert_allclose(y, expected, atol=1e-5)  # float32 sums in another order
    assert 0 < dropped < B * L
    np.testing.assert_allclose(routing["dropped"], [dropped / (B * L)], atol=1e-6)
    assert np.all(np.asarray(y)[expected == 0] == 0)  # the residual path alone
    np.testing.assert_array_equal(assignment(module, params), computed)


def assignment(module, params):
    """Which experts compute each token: [G, T, E]."""
    _, sown = jax.jit(functools.partial(module.apply, mutable=["assignment"]))(
        {"params": params}, X
    )
    (found,) = moe.collect(sown["assignment"])["computed_by"]
    return found


@pytest.mark.parametrize("router", [moe.SwitchRouter, moe.Top2Router])
def test_without_drops_both_dispatches_have_the_same_experts(router):
    slots = sparse(router, eval_capacity_factor=float(E))
    params = initial(slots)
    found = assignment(slots, params)
    np.testing.assert_array_equal(found, assignment(sparse(router, dispatch="dropless"), params))
    assert (found.sum(axis=2) >= 1).all()


@pytest.mark.parametrize("router", [moe.SwitchRouter, moe.Top2Router])
@pytest.mark.parametrize("training", [False, True])
def test_without_drops_both_dispatches_are_equal(router, training):
    slots = sparse(router, capacity_factor=float(E), eval_capacity_factor=float(E))
    ragged = sparse(router, dispatch="dropless")
    settings = {"deterministic": not training, "rngs": {"dropout": jax.random.key(2)}}

    def loss(params, module):
        y, routing = run(module, params, **settings)
        return jnp.sum(jnp.sin(y)) + jnp.sum(routing["balance"]), (y, routing["load"])

    grad = jax.value_and_grad(loss, has_aux=True)
    params = initial(slots)
    (_, expected), expected_gradient = jax.jit(lambda p: grad(p, slots))(params)
    (_, found), gradient = jax.jit(lambda p: grad(p, ragged))(params)
    assert all(np.any(g != 0) for g in jax.tree.leaves(gradient))
    jax.tree.map(  # float32 sums in another order
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        (found, gradient),
        (expected, expected_gradient),
    )


def exchanged_on_a_mesh(shape, module, *batches):
    """Compare outputs and gradients with one device's; return the shapes that devices exchange."""

    def loss(params, x):
        settings = {"deterministic": False, "rngs": {"dropout": jax.random.key(2)}}
        y, sown = module.apply({"params": params}, x, mutable=["routing"], **settings)
        routing = moe.collect(sown["routing"])
        return jnp.mean(jnp.sin(y)) + jnp.sum(routing["balance"]), (y, routing["load"])

    grad = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    params = initial(module, batches[0])
    axes = nn.get_partition_spec(jax.eval_shape(module.init, jax.random.key(0), X)["params"])
    mesh = partitioning.make_mesh(shape)
    on_one_device = jax.jit(grad)
    expected = [on_one_device(params, x) for x in batches]
    with partitioning.layout(mesh):
        sharded = jax.device_put(params, partitioning.shardings(mesh, axes))
        rows = [jax.device_put(x, partitioning.batch_sharding(mesh)) for x in batches]
        compiled = jax.jit(grad).lower(sharded, rows[0]).compile()
        actual = [compiled(sharded, x) for x in rows]
    jax.tree.map(  # float32 sums in another order
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        jax.device_get(actual),
        jax.device_get(expected),
    )
    exchanged = re.findall(
        r"= f32\[([\d,]+)\]\S* (?:all-\w+|reduce-scatter|collective-permute)\(", compiled.as_text()
    )
    return [tuple(map(int, sizes.split(","))) for sizes in exchanged]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shape", [{"data": 2, "fsdp": 2, "model": 2}, {"fsdp": 8}])
def test_dropless_experts_on_a_mesh_are_those_of_one_device_and_exchange_kernels_only(shape, gated):
    module = sparse(moe.Top2Router, dispatch="dropless", gated=gated)
    x = np.random.default_rng(2).normal(size=(8, L, D)).astype(np.float32)
    shapes = exchanged_on_a_mesh(shape, module, x)
    # Kernels of the experts and of the router, and within `model` the sorted rows of one device.
    local_rows = (1, 2 * x.size // D // partitioning.batch_parts(shape), D)
    assert sum(size[0] == E and len(size) == 3 for size in shapes) >= 4
    assert all(size[0] == E or size[1:] == (E,) or size == local_rows for size in shapes), shapes


@pytest.mark.parametrize(
    ("shape", "router"),
    [
        ({"expert": 4, "model": 2}, moe.Top2Router),
        ({"data": 2, "fsdp": 2, "expert": 2}, moe.SwitchRouter),
        ({"expert": 8}, moe.Top2Router),  # two choices are never experts of the same device
    ],
)
def test_dropless_experts_that_are_sharded_exchange_rows_and_no_kernels(shape, router):
    module = sparse(router, experts=8, dispatch="dropless", gated=True)
    x = np.random.default_rng(2).normal(size=(8, L, D)).astype(np.float32)
    # If all rows are equal, one device has them all.
    shapes = exchanged_on_a_mesh(shape, module, x, np.broadcast_to(x[:1, :1], x.shape))
    kernels = [size for size in shapes if len(size) == 3 and {D, F} <= set(size[1:])]
    assert all(size[0] <= 8 // shape["expert"] for size in kernels), shapes


def test_the_flops_of_sharded_experts_do_not_count_the_empty_rows_of_buffers():
    module = sparse(moe.TopKRouter, experts=8, dispatch="dropless")
    x = np.zeros((8, L, D), np.float32)
    params = initial(module, x)

    def forward(x):
        return module.apply({"params": params}, x)

    expected = 2 * x.size * 8 + 2 * 2 * (2 * x.size * F)  # router; two choices of two products
    assert flops.count(forward, x) == expected
    with partitioning.layout(partitioning.make_mesh({"expert": 8})):
        assert flops.count(forward, x) == expected


@pytest.mark.parametrize(
    ("settings", "training", "slots"),
    [
        ({"capacity_factor": 1.0}, True, 3),
        ({"capacity_factor": 1.25}, True, 4),  # 3.75
        ({"eval_capacity_factor": 2.0}, False, 6),
        ({"eval_capacity_factor": 100.0}, False, L),
        ({"expert_capacity": 5}, True, 5),
        ({"capacity_factor": 0.5, "group_size": 3 * L}, True, 3),  # rows in pairs: 4 of them
    ],
)
def test_an_expert_has_the_slots_of_its_factor(settings, training, slots):
    # All tokens ask for one expert, so what is not dropped is what it has.
    module = sparse(**settings)
    params = initial(module)
    kernel = np.array(params["router"]["kernel"])
    kernel[:, 1] = 1e3
    params["router"]["kernel"] = kernel
    x = np.abs(X)
    y, routing = run(
        module, params, x, deterministic=not training, rngs={"dropout": jax.random.key(0)}
    )
    groups = 2 if "group_size" in settings else B
    assert np.sum(np.any(np.asarray(y) != 0, axis=-1)) == groups * slots
    np.testing.assert_allclose(routing["load"], [[0, 1, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(routing["dropped"], [1 - groups * slots / (B * L)], atol=1e-6)


def test_rows_of_a_group_share_slots_earlier_rows_first():
    alone, paired = sparse(expert_capacity=4), sparse(expert_capacity=4, group_size=2 * L)
    params = initial(alone)
    rows = X.reshape(B // 2, 2 * L, D)
    np.testing.assert_array_equal(
        np.reshape(run(paired, params)[0], rows.shape), run(alone, params, rows)[0]
    )


def test_a_step_of_generation_drops_nothing_whoever_is_beside_it():
    module = sparse(eval_capacity_factor=0.1, group_size=100)
    params = initial(module)
    steps = X[0][:, None]
    y, routing = run(module, params, steps)
    assert routing["dropped"] == 0
    np.testing.assert_allclose(y[3:4], run(module, params, steps[3:4])[0], atol=1e-6)


def test_nothing_has_the_size_of_tokens_times_experts_times_slots():
    tokens, experts = 256, 32
    module = sparse(experts=experts, capacity_factor=2.0)
    x = jnp.zeros((1, tokens, D))
    shapes = jax.eval_shape(lambda: initial(module, x))
    program = jax.make_jaxpr(
        jax.grad(
            lambda p, x: jnp.sum(
                module.apply(
                    {"params": p}, x, deterministic=False, rngs={"dropout": jax.random.key(0)}
                )
            )
        )
    )(shapes, x)

    def sizes(jaxpr):
        for equation in jaxpr.eqns:
            yield from (v.aval.size for v in equation.outvars)
            for value in equation.params.values():
                if hasattr(value, "eqns"):
                    yield from sizes(value)

    slots = 2 * tokens
    assert max(sizes(program)) <= max(slots * F, tokens * experts, experts * D * F)
    assert tokens * experts * slots / experts > 10 * max(slots * F, tokens * experts)


def test_experts_have_a_dropout_of_their_own():
    module, calm = (
        sparse(dropout=0.5, capacity_factor=4.0),
        sparse(eval_capacity_factor=4.0),
    )
    params = initial(calm)
    settings = {"deterministic": False, "rngs": {"dropout": jax.random.key(1)}}
    noisy, _ = run(module, params, **settings)
    assert np.mean(np.abs(noisy - run(calm, params)[0]) > 1e-3) > 0.5
    np.testing.assert_array_equal(run(module, params)[0], run(sparse(), params)[0])


def test_in_bfloat16_the_router_stays_float32():
    module = sparse(dtype=jnp.bfloat16)
    params = initial(module)
    y, routing = run(module, params, X.astype(jnp.bfloat16))
    assert y.dtype == jnp.bfloat16
    assert {x.dtype for x in jax.tree.leaves((params, routing))} == {jnp.dtype(jnp.float32)}


def test_collect_keeps_the_order_of_scanned_and_of_looped_layers():
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, shared, per_layer):
            make = functools.partial(sparse, eval_capacity_factor=4.0)
            return x + make(parent=self, name="feed_forward")(x), None

    class Network(nn.Module):
        loop: str

        @nn.compact
        def __call__(self, x):
            block = functools.partial(LayerGroup, (Layer, Layer))
            for name in ("encoder", "decoder"):
                stack = Stack(block, 2, compute=Compute(loop=self.loop), name=name)
                x, _ = stack(x, None, None)
            return x

    looped, scanned = Network("unroll"), Network("scan")
    params = jax.jit(lambda: initial(looped))()
    stacked = {name: stack_layers(params[name]) for name in params}
    _, expected = jax.jit(lambda p: run(looped, p))(params)
    _, found = jax.jit(lambda p: run(scanned, p))(stacked)
    assert found["load"].shape == (8, E)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-3, err_msg=name)
    assert len(np.unique(np.asarray(expected["z"]))) == 8  # so that an order can be seen


def test_collect_counts_layers_as_numbers_and_begins_with_the_encoder():
    def sown(value):
        return {"feed_forward": {"z": (jnp.array(float(value)),)}}

    decoder = {"layers": {f"layer_{n}": sown(100 + n) for n in (10, 2, 1)}}
    encoder = {"layers": {f"layer_{n}": {"block_1": sown(n)} for n in (11, 3)}}
    found = moe.collect({"decoder": decoder, "encoder": encoder})
    np.testing.assert_array_equal(found["z"], [3, 11, 101, 102, 110])
    with pytest.raises(ValueError, match="no sparse layer"):
        moe.collect({})


def test_bad_dispatches_are_errors():
    with pytest.raises(ValueError, match="Did you mean 'dropless'"):
        initial(sparse(dispatch="droples"))
    with pytest.raises(ValueError, match="expert_choice"):
        initial(sparse(moe.ExpertChoiceRouter, dispatch="dropless"))
