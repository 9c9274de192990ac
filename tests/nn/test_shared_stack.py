"""Layers that share parameters: as layers with copies of them, scanned as unrolled."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.nn.compute import Compute
from t5x_like.nn.linear import Linear
from t5x_like.nn.stack import Stack
from t5x_like.systems.albert import SharedStack

LAYERS, GROUPS, INNER = 4, 2, 2
BLOCKS = LAYERS * INNER
# Float32 sums of tens of terms of order 1, in another order.
ROUNDING = 2e-5


class Block(nn.Module):
    """Two parts, dropout, something shared by all layers and a number for each."""

    @nn.compact
    def __call__(self, carry, shared, layer):
        init = nn.initializers.normal(0.5)
        wide = Linear((5,), axes=("embed", "mlp"), kernel_init=init, name="first")(carry)
        y = Linear((3,), axes=("mlp", "embed"), kernel_init=init, name="second")(jnp.tanh(wide))
        y = nn.Dropout(0.5)(y, deterministic=not self.has_rng("dropout"))
        return carry + y * shared, jnp.sum(y) + layer

    def empty_cache(self, *, batch, slots):
        return jnp.zeros((batch, slots))


X = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3)), jnp.float32)
PER_LAYER = jnp.arange(BLOCKS, dtype=jnp.float32)
SHARING = [("first", "second"), ("first",), ("second",), ()]


def stack(parts, **settings):
    sizes = {"layers": LAYERS, "groups": GROUPS, "inner": INNER}
    return SharedStack(make_block=Block, parts=parts, **(sizes | settings))


@functools.cache
def initial(module):
    init = jax.jit(module.init)
    blocks = module.layers * module.inner
    return nn.unbox(init(jax.random.key(1), X, 0.5, jnp.arange(blocks)))["params"]


@functools.cache
def value_and_gradient(module):
    """Of a number that every layer has a part in."""

    def total(params, key):
        rngs = None if key is None else {"dropout": key}
        blocks = module.layers * getattr(module, "inner", 1)
        carry, outs = module.apply({"params": params}, X, 0.5, jnp.arange(blocks), rngs=rngs)
        return jnp.sum(carry**2) + jnp.sum(outs**2), (carry, outs)

    return jax.jit(jax.value_and_grad(total, has_aux=True))


def uses(parts):
    """For each block in the order they are run in, where each part's parameters are."""
    return [
        {
            part: (layer // (LAYERS // GROUPS) if part in parts else layer, inner)
            for part in ("first", "second")
        }
        for layer in range(LAYERS)
        for inner in range(INNER)
    ]


@pytest.mark.parametrize("parts", SHARING)
def test_it_is_a_stack_of_copies_and_a_shared_gradient_is_their_sum(parts):
    params, places = initial(stack(parts)), uses(parts)
    copies = {
        part: {"kernel": jnp.stack([tree["kernel"][place[part]] for place in places])}
        for part, tree in params.items()
    }
    plain = Stack(make_block=Block, layers=BLOCKS)
    (_, expected), each = value_and_gradient(plain)({"block": copies}, None)
    (_, found), gradient = value_and_gradient(stack(parts))(params, None)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=ROUNDING), found, expected)

    for part, tree in gradient.items():
        summed = np.zeros(tree["kernel"].shape)
        for n, place in enumerate(places):
            summed[place[part]] += each["block"][part]["kernel"][n]
        np.testing.assert_allclose(tree["kernel"], summed, rtol=1e-4, atol=ROUNDING)


@pytest.mark.parametrize("parts", SHARING)
def test_a_shared_parameter_is_there_once(parts):
    for part, tree in initial(stack(parts)).items():
        copies = GROUPS if part in parts else LAYERS
        kernel = tree["kernel"]
        assert kernel.shape[:2] == (copies, INNER)
        # Each is initialized on its own.
        assert len({float(x) for x in kernel[..., 0, 0].ravel()}) == copies * INNER


@pytest.mark.parametrize(
    "compute", [Compute(loop="unroll"), Compute(remat="full"), Compute(remat="dots")]
)
def test_unrolled_and_recomputed_layers_compute_the_same_with_the_same_dropout(compute):
    small = functools.partial(stack, ("first",), layers=2, groups=1, inner=1)
    arguments = initial(small()), jax.random.key(2)
    expected = value_and_gradient(small())(*arguments)
    found = value_and_gradient(small(compute=compute))(*arguments)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=ROUNDING), found, expected
    )


def test_each_use_of_a_parameter_has_its_own_dropout():
    params = jax.tree.map(jnp.ones_like, initial(stack(SHARING[0])))
    # Between two layers whose carry hardly moves, only the mask can change what is put out.
    apply = jax.jit(
        lambda key: stack(SHARING[0]).apply(
            {"params": params}, jnp.ones((16, 3)), 1e-6, PER_LAYER, rngs={"dropout": key}
        )
    )
    outs = apply(jax.random.key(0))[1] - PER_LAYER
    assert len(set(np.round(np.asarray(outs), 2))) > BLOCKS // 2


def test_parameters_name_their_axes():
    boxed = jax.eval_shape(stack(("first",)).init, jax.random.key(0), X, 0.5, PER_LAYER)
    axes = nn.get_partition_spec(boxed)["params"]
    assert tuple(axes["first"]["kernel"]) == ("layers", "inner_layers", "embed", "mlp")
    assert tuple(axes["second"]["kernel"]) == ("layers", "inner_layers", "mlp", "embed")


def test_there_is_a_cache_for_each_block():
    assert stack(()).empty_cache(batch=2, slots=3).shape == (BLOCKS, 2, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups": 3}, r"groups=3 must divide model\.layers=4"),
        ({"parts": ("furst",)}, "Did you mean 'first'"),
        ({"compute": Compute(loop="scann")}, "Did you mean 'scan'"),
        ({"compute": Compute(remat="ful")}, "Did you mean 'full'"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    module = stack(**({"parts": ()} | settings))
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(module.init, jax.random.key(0), X, 0.5, PER_LAYER)
