"""Embeddings and output layers that devices share: the same numbers, and no whole table sent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from t5x_like import losses, partitioning
from t5x_like.losses import token_cross_entropy
from t5x_like.nn.embeddings import VocabularyProduct, look_up
from t5x_like.research.planning import collectives, hlo

ROWS, LENGTH, WIDTH, V = 16, 5, 8, 64
TABLE_BYTES = 4 * V * WIDTH
# Sums of up to 80 float32 numbers of order 1, in another order: 80 * 2^-24 = 5e-6 each.
ROUNDING = 1e-5
MESHES = [
    {"data": 2, "fsdp": 4},
    {"fsdp": 8},
    {"data": 2, "fsdp": 2, "model": 2},
    {"fsdp": 2, "expert": 2, "model": 2},
    {"data": 4, "model": 2},
]


def draw(*shape, seed):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


TOKENS = np.random.default_rng(0).integers(0, V, (ROWS, LENGTH), np.int32)


def looked_up(table):
    rows = look_up(table, TOKENS, axis="vocab", dtype=jnp.float32)
    return jnp.sum(rows * draw(ROWS, LENGTH, WIDTH, seed=1)), rows


def loss(kernel, hidden):
    axis = 1 if kernel.shape == (WIDTH, V) else 0
    product = VocabularyProduct(hidden, kernel, vocabulary_axis=axis)
    return losses.cross_entropy(product, TOKENS, np.ones_like(TOKENS))[0]


def sharded(array, mesh, names=("vocab", "embed")):
    return jax.device_put(array, partitioning.shardings(mesh, P(*names)))


def sent(compiled, mesh):
    """The collectives over each set of axes, and the largest array of each."""
    found = collectives.collect(hlo.parse(compiled.as_text()), mesh)
    return {(one.kind, one.axes): one for one in found}


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_rows_and_their_gradient_are_those_of_one_device(mesh):
    table = draw(V, WIDTH, seed=2)
    (_, rows), gradient = jax.value_and_grad(looked_up, has_aux=True)(table)
    mesh = partitioning.make_mesh(mesh)
    with partitioning.layout(mesh):
        graded = jax.jit(jax.value_and_grad(looked_up, has_aux=True))
        (_, rows_there), gradient_there = graded(sharded(table, mesh))
    np.testing.assert_array_equal(rows_there, rows)
    np.testing.assert_allclose(gradient_there, gradient, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("mesh", MESHES[1:3], ids=str)
@pytest.mark.parametrize("names", [("vocab", "embed"), ("embed", "vocab")])
@pytest.mark.parametrize("tiled", [False, True])
def test_gradients_of_output_layers_are_those_of_one_device(mesh, names, tiled, monkeypatch):
    monkeypatch.setattr(token_cross_entropy, "is_large", lambda logits: tiled)
    kernel, hidden = draw(V, WIDTH, seed=3), draw(ROWS, LENGTH, WIDTH, seed=4)
    kernel = kernel if names[0] == "vocab" else kernel.T
    expected = jax.grad(loss, argnums=(0, 1))(kernel, hidden)
    mesh = partitioning.make_mesh(mesh)
    with partitioning.layout(mesh):
        found = jax.jit(jax.grad(loss, argnums=(0, 1)))(sharded(kernel, mesh, names), hidden)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=ROUNDING)


def test_tokens_that_are_no_rows_are_nan_where_the_vocabulary_is_cut():
    mesh = partitioning.make_mesh({"fsdp": 4, "model": 2})
    tokens = TOKENS.copy()
    tokens[0, 0], tokens[0, 1] = V, V - 1
    with partitioning.layout(mesh):
        table = sharded(draw(V, WIDTH, seed=2), mesh)
        rows = jax.jit(lambda t: look_up(t, tokens, axis="vocab", dtype=jnp.float32))(table)
    assert np.isnan(rows[0, 0]).all()
    assert np.isfinite(rows[0, 1:]).all()


def test_the_table_and_its_gradient_stay_where_they_are():
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 4})
    with partitioning.layout(mesh):
        table = sharded(draw(V, WIDTH, seed=2), mesh)
        gradient = jax.jit(jax.grad(looked_up, has_aux=True)).lower(table).compile()
    found = sent(gradient, mesh)
    # Tokens, and the embeddings of a device's four rows of two; replicas have a part in common.
    assert set(found) == {
        ("all-gather", ("fsdp",)),
        ("all-to-all", ("fsdp",)),
        ("all-reduce", ("data",)),
    }
    assert found["all-reduce", ("data",)].largest == TABLE_BYTES // 4
    assert found["all-gather", ("fsdp",)].largest <= TOKENS.nbytes


@pytest.mark.parametrize("tiled", [False, True])
def test_the_gradient_of_an_output_layer_is_scattered_then_reduced(tiled, monkeypatch):
    monkeypatch.setattr(token_cross_entropy, "is_large", lambda logits: tiled)
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 4})
    with partitioning.layout(mesh):
        kernel = sharded(draw(V, WIDTH, seed=3), mesh)
        rows = NamedSharding(mesh, P(partitioning.BATCH_AXES))
        hidden = jax.device_put(draw(ROWS, LENGTH, WIDTH, seed=4), rows)
        out = partitioning.shardings(mesh, P("vocab", "embed"))
        gradient = jax.jit(jax.grad(loss), out_shardings=out).lower(kernel, hidden).compile()
    found = sent(gradient, mesh)
    assert found["reduce-scatter", ("fsdp",)].largest == TABLE_BYTES
    assert found["all-reduce", ("data",)].largest == TABLE_BYTES // 4
    assert ("all-reduce", ("fsdp",)) not in found
    assert ("all-reduce", ("data", "fsdp")) not in found
