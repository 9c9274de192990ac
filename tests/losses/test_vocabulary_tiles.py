"""The cross-entropy in tiles of the vocabulary: the same numbers, and never all logits at once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import losses, partitioning, systems
from t5x_like.losses import token_cross_entropy
from t5x_like.nn.embeddings import VocabularyProduct
from t5x_like.systems import t5

ROWS, LENGTH, WIDTH, V = 4, 6, 8, 44
TILE = 8  # 5 tiles, and one of 4 columns
# Sums of up to 44 float32 numbers of order 1, in another order: 44 * 2^-24 = 3e-6 each.
ROUNDING = 1e-5


@pytest.fixture
def tiled(monkeypatch):
    monkeypatch.setattr(token_cross_entropy, "is_large", lambda logits: True)
    tiles = functools.partial(token_cross_entropy.reduce_in_tiles, tile=TILE)
    monkeypatch.setattr(token_cross_entropy, "reduce_in_tiles", tiles)


def draw(*shape, seed, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def product(*, axis, bias, dtype=jnp.float32):
    kernel = draw(V, WIDTH, seed=1)
    return VocabularyProduct(
        draw(ROWS, LENGTH, WIDTH, seed=0, dtype=dtype),
        kernel.T if axis else kernel,
        draw(V, seed=2) if bias else None,
        vocabulary_axis=axis,
    )


def labels():
    generator = np.random.default_rng(3)
    targets = generator.integers(0, V, (ROWS, LENGTH), np.int32)
    targets[0, :2] = 0, V - 1
    weights = generator.choice(np.float32([0.0, 0.5, 1.0, 2.0]), (ROWS, LENGTH))
    return targets, weights


def loss_of(settings, targets, weights, *, whole):
    """The loss and the metrics as a function of the product, jitted with its gradient."""

    def loss(product):
        logits = product.logits() if whole else product
        total, weight, metrics = losses.cross_entropy(logits, targets, weights, **settings)
        return total, (weight, metrics)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


@pytest.mark.parametrize(
    ("axis", "bias", "settings"),
    [
        (0, False, {}),
        (0, True, {"z_loss": 0.01, "label_smoothing": 0.1}),
        (1, False, {"z_loss": 0.01}),
        (1, True, {"label_smoothing": 0.1}),
    ],
)
def test_tiles_have_the_numbers_and_gradients_of_whole_logits(tiled, axis, bias, settings):
    logits = product(axis=axis, bias=bias)
    expected, found = (loss_of(settings, *labels(), whole=whole)(logits) for whole in (True, False))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=ROUNDING, atol=ROUNDING)
    assert (found[1].bias is None) != bias


def test_bfloat16_products_keep_float32_sums(tiled):
    logits = product(axis=0, bias=False, dtype=jnp.bfloat16)
    expected, found = (loss_of({}, *labels(), whole=whole)(logits) for whole in (True, False))
    np.testing.assert_allclose(found[0][0], expected[0][0], rtol=ROUNDING)
    assert found[1].kernel.dtype == jnp.float32
    # Both round each gradient of a logit to 8 bits; whole logits round the sums again.
    for a, b in zip(jax.tree.leaves(found[1]), jax.tree.leaves(expected[1]), strict=True):
        np.testing.assert_allclose(a.astype(jnp.float32), b.astype(jnp.float32), atol=0.05)


@pytest.mark.parametrize("unknown", [-1, V])
def test_an_unknown_target_is_nan_unless_it_has_no_weight(tiled, unknown):
    targets, weights = labels()
    targets[1, 1], weights[1, 1] = unknown, 1.0
    (loss, _), _ = loss_of({}, targets, weights, whole=False)(product(axis=0, bias=False))
    assert jnp.isnan(loss)
    weights[1, 1] = 0.0
    (loss, _), gradient = loss_of({}, targets, weights, whole=False)(product(axis=0, bias=False))
    assert jnp.isfinite(loss)
    assert jnp.isfinite(gradient.kernel).all()


def test_accuracy_takes_the_first_of_equal_logits(tiled):
    flat = VocabularyProduct(jnp.zeros((1, 3, WIDTH)), draw(V, WIDTH, seed=1))
    _, _, metrics = losses.cross_entropy(flat, jnp.asarray([[0, 1, V - 1]]), jnp.ones((1, 3)))
    assert metrics["accuracy"][0] == 1


@pytest.mark.parametrize("axis", [0, 1])
def test_a_mesh_cuts_tiles_as_it_cuts_the_vocabulary(tiled, axis):
    mesh = partitioning.make_mesh({"data": 1, "fsdp": 2, "model": 4})
    logits, settings = product(axis=axis, bias=True), {"z_loss": 0.01, "label_smoothing": 0.1}
    expected = loss_of(settings, *labels(), whole=True)(logits)
    with partitioning.layout(mesh):
        run = loss_of(settings, *labels(), whole=False).lower(logits).compile()
        found = run(logits)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=ROUNDING, atol=ROUNDING)
    # Of 2 rows and its own 11 columns a device has tiles of 8 and 3.
    assert f"f32[2,{LENGTH},1,{TILE}]" in run.as_text()
    assert f"f32[2,{LENGTH},1,3]" in run.as_text()


def test_logits_are_large_by_the_bytes_of_a_device():
    product = VocabularyProduct(
        jnp.zeros((8, 1, 1)), jnp.zeros((token_cross_entropy.LARGE // 32, 1))
    )
    assert not token_cross_entropy.is_large(product)
    product = product.replace(hidden=jnp.zeros((16, 1, 1)))
    assert token_cross_entropy.is_large(product)
    with partitioning.layout(partitioning.make_mesh({"data": 2, "model": 4})):
        assert not token_cross_entropy.is_large(product)


def sizes_of(jaxpr):
    """The number of elements of every float32 array of a program."""
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            if variable.aval.dtype == jnp.float32:
                yield variable.aval.size
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
            if _is_program(inner):
                yield from sizes_of(getattr(inner, "jaxpr", inner))


def _is_program(x):
    return hasattr(x, "eqns") or hasattr(getattr(x, "jaxpr", None), "eqns")


@pytest.mark.parametrize("tied_head", [True, False])
def test_no_array_of_a_training_step_has_all_logits(request, tied_head):
    small = {"vocab_size": 4096, "d_model": 8, "d_ff": 8, "heads": 1, "d_kv": 8}
    layers = {"encoder_layers": 1, "decoder_layers": 1, "tied_head": tied_head}
    module = systems.build("t5", t5.SIZES["v1_0_small"] | small | layers)
    tokens = jnp.zeros((16, 32), jnp.int32)
    batch = module.example_batch(batch=16, length=32)
    batch |= {"decoder_target_tokens": tokens, "decoder_loss_weights": tokens}
    params = jax.eval_shape(lambda: module.init(jax.random.key(0), batch))["params"]

    def gradient():
        own = jax.grad(lambda params: t5.loss(module, params, batch, None, z_loss=1e-4)[0])
        return jax.make_jaxpr(own)(params).jaxpr

    logits = tokens.size * 4096
    assert max(sizes_of(gradient())) == logits
    request.getfixturevalue("tiled")
    assert max(sizes_of(gradient())) < logits / 10
