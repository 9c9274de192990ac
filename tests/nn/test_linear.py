"""Linear maps one after the other on a mesh: their gradients are those of one device."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import partitioning
from t5x_like.nn.compute import Compute
from t5x_like.nn.linear import TRANSPOSED, Linear, replicate_last_axis


class Pair(nn.Module):
    """A map that is cut over `model` along its output, and one over `fsdp` along its input."""

    @nn.compact
    def __call__(self, x):
        x = jnp.tanh(replicate_last_axis(Linear((48,), axes=("embed", "mlp"), name="first")(x)))
        y = Linear((128,), axes=("embed", "vocab"), name="second")(x)
        return nn.with_logical_constraint(
            y, ("activation_batch", "activation_length", "activation_vocab")
        )


@pytest.mark.parametrize("platform", ["cpu", "tpu"])  # on TPUs kernels keep their axes
def test_a_width_that_is_kept_whole_has_the_gradient_of_one_device(platform, monkeypatch):
    monkeypatch.setattr(partitioning, "platform", lambda: platform)
    random = np.random.default_rng(0)
    x = random.standard_normal((8, 8, 32)).astype(np.float32)
    out = random.standard_normal((8, 8, 128)).astype(np.float32)
    boxed = Pair().init(jax.random.key(0), x)
    params = nn.unbox(boxed)

    def gradient(params, batch):
        return jax.grad(lambda p: jnp.sum(Pair().apply(p, batch["x"]) * batch["out"]))(params)

    expected = jax.jit(gradient)(params, {"x": x, "out": out})
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 2, "model": 2})
    with partitioning.layout(mesh):
        shardings = partitioning.shardings(mesh, nn.get_partition_spec(boxed))
        batch = partitioning.shard_batch({"x": x, "out": out}, mesh)
        found = jax.jit(gradient)(jax.device_put(params, shardings), batch)
    # Float32 sums of some hundreds of terms of order 1, in another order.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, expected
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 8, 65])  # from 65 on the kernel is the right operand
@pytest.mark.parametrize("contract", [1, 2])
def test_a_transposed_kernel_gives_the_same(contract, rows, dtype):
    axes = {1: ("embed", "heads", "kv"), 2: ("heads", "kv", "embed")}[contract]
    layer = Linear(
        (6, 4, 5)[contract:],
        axes,
        contract=contract,
        use_bias=True,
        compute=Compute(dtype=dtype),
    )
    x = jax.random.normal(jax.random.key(0), (rows, 1, *(6, 4, 5)[:contract]))
    params = nn.unbox(layer.init(jax.random.key(1), x))["params"]
    params["bias"] += 1.0
    kernel = params["kernel"].reshape(6 * (4 if contract == 2 else 1), -1).T
    variables = {"params": {"bias": params["bias"]}, TRANSPOSED: {"kernel": kernel}}
    found = jax.jit(layer.apply)(variables, x)
    expected = jax.jit(layer.apply)({"params": params}, x)
    assert found.dtype == expected.dtype == dtype
    # Sums of 24 terms of order 0.2, in another order; a last bit of bfloat16.
    rounding = {"float32": 1e-6, "bfloat16": 2**-7}[dtype]
    np.testing.assert_allclose(found.astype("float32"), expected.astype("float32"), atol=rounding)


@pytest.mark.parametrize("contract", [1, 2])
def test_on_a_tpu_the_kernel_keeps_its_axes(contract, monkeypatch):
    axes = {1: ("embed", "heads", "kv"), 2: ("heads", "kv", "embed")}[contract]
    layer = Linear((6, 4, 5)[contract:], axes, contract=contract, use_bias=True)
    x = jax.random.normal(jax.random.key(0), (2, 3, *(6, 4, 5)[:contract]))
    params = nn.unbox(layer.init(jax.random.key(1), x))

    def gradient(params, x):
        return jax.grad(lambda p, x: jnp.sum(jnp.sin(layer.apply(p, x))), (0, 1))(params, x)

    expected = gradient(params, x)
    monkeypatch.setattr(partitioning, "platform", lambda: "tpu")
    # Sums of at most 30 terms of order 1, in another order.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        gradient(params, x),
        expected,
    )
    [product] = [
        line.params["dimension_numbers"][0]
        for line in jax.make_jaxpr(layer.apply)(params, x).eqns
        if line.primitive.name == "dot_general"
    ]
    ends = tuple(range(2, 2 + contract))
    assert product == (ends, tuple(range(contract)))
