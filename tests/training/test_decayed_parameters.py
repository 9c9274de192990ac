"""Which parameters decay, and have a trust ratio in LAMB: matrices, by their axes or shapes."""

import functools

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from t5x_like import systems
from t5x_like.nn.compute import Compute
from t5x_like.nn.stack import Stack, logical_axes
from t5x_like.training import optimizers
from t5x_like.training.layer_rates import by_path
from t5x_like.training.layer_tensors import matrices

ADAMW = {"name": "adamw", "schedule": "constant", "learning_rate": 1.0, "weight_decay": 0.5}


class Unnamed(nn.Module):
    """A module of Flax's own parts, as a user writes it: no parameter names its axes."""

    @nn.compact
    def __call__(self, x, shared=None, per_layer=None):
        del shared, per_layer
        x = nn.LayerNorm(name="norm")(x)
        x = nn.DenseGeneral((2, 4), name="split")(x)
        x = nn.DenseGeneral(8, axis=(-2, -1), name="join")(x)
        return x, None


def moved(params, axes, settings):
    """By which factor a step without a gradient changes each parameter."""
    optimizer, _ = optimizers.build(settings, axes=axes)
    zeros = jax.tree.map(np.zeros_like, params)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    after = optax.apply_updates(params, updates)
    new, old = by_path(after), by_path(params)
    factors = {path: np.unique(np.asarray(new[path]) / old[path]) for path in old}
    assert all(factor.size == 1 for factor in factors.values())
    return {path: float(factor[0]) for path, factor in factors.items()}


def of_ones(module, *inputs):
    boxed = jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs)["params"])
    shapes = nn.unbox(boxed)
    return jax.tree.map(lambda x: np.ones(x.shape, np.float32), shapes), logical_axes(boxed)


def test_kernels_without_names_of_axes_decay_and_biases_and_gains_do_not():
    params, axes = of_ones(Unnamed(), np.zeros((1, 8), np.float32))
    assert set(jax.tree.leaves(axes)) == {PartitionSpec()}
    found = moved(params, axes, ADAMW)
    # Devlin et al. 2018, the released optimization.py: all but LayerNorm and biases decay. The bias
    # of `nn.DenseGeneral` is [2, 4].
    assert found == {
        "norm/scale": 1,
        "norm/bias": 1,
        "split/kernel": 0.5,
        "split/bias": 1,
        "join/kernel": 0.5,
        "join/bias": 1,
    }


def test_a_stack_of_layers_without_names_decays_as_one_layer_does():
    block, compute = functools.partial(Unnamed), Compute(loop="scan")
    stack = Stack(make_block=block, layers=3, compute=compute)
    params, axes = of_ones(stack, np.zeros((1, 8), np.float32), None, None)
    kernel = axes["block"]["split"]["kernel"]
    assert tuple(kernel) == ("layers", None, None, None)
    found = moved(params, axes, ADAMW)
    assert {path.removeprefix("block/") for path, factor in found.items() if factor == 0.5} == {
        "split/kernel",
        "join/kernel",
    }


def test_lamb_has_a_trust_ratio_for_kernels_without_names_of_axes():
    params = {"kernel": np.full((3, 2), 2.0, np.float32), "bias": np.full(2, 2.0, np.float32)}
    axes = {"kernel": PartitionSpec(), "bias": PartitionSpec()}
    settings = {"name": "lamb", "schedule": "constant", "learning_rate": 1.0}
    optimizer, _ = optimizers.build(settings, axes=axes)
    gradients = jax.tree.map(np.ones_like, params)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    # You et al. 2020, algorithm 2: Adam's first step is 1 everywhere, times |X| / |1| = 2.
    np.testing.assert_allclose(updates["kernel"], -2, rtol=1e-5)
    np.testing.assert_allclose(updates["bias"], -1, rtol=1e-5)


@pytest.mark.parametrize(
    ("axes", "decays"),
    [
        # A recurrent cell's bias is one vector of all gates: transformers' Trainer and PyTorch's
        # examples spare it as a bias (`get_decay_parameter_names`, names with "bias").
        (("directions", "gates", "mlp"), False),
        (("gates", "mlp"), False),
        (("directions", "embed", "gates", "mlp"), True),
        (("embed", "gates", "mlp"), True),
        (("directions", "mlp", "embed"), True),
        # `relative_attention_bias` of T5, and the biases of ETC's relations: a number a head.
        (("buckets", "heads"), False),
        (("layers", "positions", "heads"), False),
        (("layers", "positions", "heads", "kv"), True),
        (("layers", "heads", "kv"), False),
        (("layers", "experts", "embed", "mlp"), True),
    ],
)
def test_biases_of_several_axes_are_biases(axes, decays):
    param = jax.ShapeDtypeStruct((3,) * len(axes), np.float32)
    assert matrices({"x": PartitionSpec(*axes)})({"x": param}) == {"x": decays}


def test_xlnet_decays_what_its_released_code_does():
    # zihangdai/xlnet, model_utils.py: AdamWeightDecayOptimizer decays r_w_bias, r_r_bias and
    # r_s_bias though their names have "bias", and seg_embed; modeling.py initializes all of them by
    # the normal distribution of the matrices.
    size = systems.find("xlnet").sizes["base"] | {"vocab_size": 8, "layers": 1, "d_model": 32}
    module = systems.build("xlnet", size | {"heads": 4, "d_ff": 8})
    boxed = jax.jit(lambda: module.init(jax.random.key(0), module.example_batch())["params"])()
    params = nn.unbox(boxed)
    decays = by_path(matrices(logical_axes(boxed))(params))
    drawn = {path.rsplit("/", 1)[-1]: path for path in decays if "_bias" in path or "seg" in path}
    assert set(drawn) == {"content_bias", "distance_bias", "segment_bias", "segments"}
    values = by_path(params)
    for path in drawn.values():
        assert decays[path], path
        assert 0.015 < np.std(values[path]) < 0.025, path
    assert not any(decay for path, decay in decays.items() if path.endswith(("/bias", "/scale")))
