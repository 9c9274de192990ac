"""Experts spread over devices: the results of one device, by an exchange of tokens alone."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import partitioning
from t5x_like.nn import moe

B, L, D, F, E = 16, 16, 32, 64, 8

MESHES = [
    {"expert": 8},
    {"data": 2, "expert": 4},
    {"data": 2, "expert": 2, "model": 2},
    {"fsdp": 2, "expert": 2, "model": 2},
    {"data": 2, "fsdp": 2, "expert": 2},
    {"data": 2, "fsdp": 2, "model": 2},
]


def layer():
    return moe.SparseFeedForward(
        make_router=functools.partial(moe.SwitchRouter, experts=E),
        make_experts=functools.partial(moe.Experts, experts=E, hidden=F),
        eval_capacity_factor=1.0,  # some tokens are dropped: the same ones on every mesh
    )


def loss(params, x):
    y, sown = layer().apply({"params": params}, x, mutable=["routing"])
    routing = moe.collect(sown["routing"])
    total = jnp.sum(jnp.sin(y)) + jnp.sum(routing["balance"])
    return total, (y, routing["load"], routing["dropped"])


STEP = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)


@pytest.fixture(scope="module")
def one_device():
    x = jax.random.normal(jax.random.key(1), (B, L, D))
    boxed = jax.jit(layer().init)(jax.random.key(0), x)["params"]
    params = nn.unbox(boxed)
    (_, outputs), gradients = jax.jit(STEP)(params, x)
    assert 0.05 < outputs[2][0] < 0.5
    return params, nn.get_partition_spec(boxed), x, outputs, gradients


@pytest.mark.parametrize("shape", MESHES, ids=lambda shape: "-".join(shape))
def test_a_mesh_computes_what_one_device_does_and_exchanges_tokens_alone(one_device, shape):
    params, axes, x, outputs, gradients = one_device
    mesh = partitioning.make_mesh(shape)
    places = partitioning.shardings(mesh, axes)
    rows = partitioning.batch_sharding(mesh)
    with partitioning.layout(mesh):
        step = jax.jit(STEP, out_shardings=(None, (places, rows)))
        at = jax.device_put(params, places), jax.device_put(x, rows)
        compiled = step.lower(*at).compile()
        (_, found), found_gradients = compiled(*at)
    jax.tree.map(  # float32 sums in another order, of terms of order 1
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
        (found, found_gradients),
        (outputs, gradients),
    )
    program = compiled.as_text()
    exchanges = re.findall(r"= \(?f32\[.* all-to-all(?:-start)?\(", program)
    # There and back, of the outputs and of their gradients.
    assert len(exchanges) == (4 if "expert" in shape else 0)
    gathered = re.findall(r"= f32\[([\d,]+)\]\S* all-gather(?:-start)?\(", program)
    kernels = [size for size in gathered if size.count(",") == 2]
    own = E // shape.get("expert", 1)
    # What `fsdp` cuts of a device's own experts is put together, never other devices' experts.
    assert all(size.startswith(f"{own},") for size in kernels)
    assert bool(kernels) == ("fsdp" in shape)


def test_a_group_lies_on_one_device():
    x = jax.random.normal(jax.random.key(1), (B, L, D))
    module = layer()
    params = nn.unbox(module.init(jax.random.key(0), x))
    pairs = module.clone(group_size=2 * L)
    mesh = partitioning.make_mesh({"data": 2, "expert": 4})  # so each device has two rows
    with partitioning.layout(mesh):
        found = jax.jit(module.clone(group_size=10 * L).apply)(params, x)
    np.testing.assert_allclose(found, jax.jit(pairs.apply)(params, x), atol=1e-5)
    assert np.any(np.abs(found - jax.jit(module.apply)(params, x)) > 1e-3)
