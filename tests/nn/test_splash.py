"""Splash attention, interpreted, beside dense attention: values, gradients, meshes, refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import llama
from t5x_like import partitioning
from t5x_like.config import parse
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.cores import dense_core
from t5x_like.nn.attention.kernels import select_core, splash_core
from t5x_like.nn.attention.positions import AttentionMask
from t5x_like.research.planning import batches, chips, compiling, products

ROWS, LENGTH, HEADS, GROUPS, WIDTH = 2, 140, 4, 2, 8  # two blocks of 128, the second nearly empty
# Softmaxes of 140 scores of order 1, and sums of as many float32 numbers, in another order.
ROUNDING = 2e-5

PACKED = np.repeat(np.array([[1, 2, 0], [1, 2, 3]]), [70, 50, 20], axis=1)
PADDED = (np.arange(LENGTH) < np.array([[140], [90]])).astype(np.int32)


def draw(seed, heads):
    values = np.random.default_rng(seed).normal(size=(ROWS, LENGTH, heads, WIDTH))
    return jnp.asarray(values, jnp.float32)


QUERY, KEY, VALUE = draw(0, HEADS), draw(1, GROUPS), draw(2, GROUPS)


@functools.partial(jax.jit, static_argnums=0)
def attend(core, mask, real, query, key, value):
    """The values at real queries, and the gradients of a sum of them."""

    def run(query, key, value):
        out = core(
            query, KeyValues.from_positions(key, value), bias=None, mask=mask, scale=WIDTH**-0.5
        )
        out = jnp.where(real[..., None, None], out, 0.0)
        return jnp.sum(out * jnp.cos(jnp.arange(WIDTH))), out

    return jax.value_and_grad(run, argnums=(0, 1, 2), has_aux=True)(query, key, value)


@pytest.mark.parametrize(
    ("segments", "settings"),
    [
        (PACKED, {"visibility": "causal"}),
        (PADDED, {}),
        (None, {"visibility": "causal", "window": 30}),
    ],
    ids=["packed", "padded", "window"],
)
def test_splash_attention_is_dense_attention(segments, settings):
    mask = AttentionMask(query_segments=segments, key_segments=segments, **settings)
    real = np.ones((ROWS, LENGTH), bool) if segments is None else segments > 0
    expected, found = (
        attend(core, mask, real, QUERY, KEY, VALUE) for core in (dense_core, splash_core)
    )
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=ROUNDING, rtol=ROUNDING)


@pytest.mark.parametrize("name", ["splash@fused", "splash@256x128,fused", "splash@128x256"])
def test_block_sizes_and_the_fused_kernel_change_no_value(name):
    mask = AttentionMask(query_segments=PACKED, key_segments=PACKED, visibility="causal")
    arguments = mask, PACKED > 0, QUERY, KEY, VALUE
    core, expected = select_core(name), attend(dense_core, *arguments)
    for a, b in zip(
        jax.tree.leaves(attend(core, *arguments)), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=ROUNDING, rtol=ROUNDING)
    kernels = str(jax.make_jaxpr(functools.partial(attend, core))(*arguments))
    assert ("splash_mha_dq" in kernels) == ("fused" not in name)
    assert core is select_core(name)  # what is jitted with it is not traced again


@pytest.mark.parametrize(
    "text", ["", "512,", "512x", "fuse", "512,fuse", "fused,512", "1e3", "-128"]
)
def test_other_settings_of_the_kernel_are_refused(text):
    with pytest.raises(ValueError, match="must be splash@QUERIES"):
        select_core(f"splash@{text}")


@pytest.mark.parametrize("text", ["500", "0", "512x64"])
def test_blocks_are_multiples_of_128(text):
    with pytest.raises(ValueError, match=f"'splash@{text}' must have blocks of a multiple of 128"):
        select_core(f"splash@{text}")


def test_rows_without_a_key_are_finite():
    segments = np.zeros((ROWS, LENGTH), np.int32)
    mask = AttentionMask(key_segments=segments)
    found = attend(splash_core, mask, segments == 0, QUERY, KEY, VALUE)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(found))


def test_each_device_of_a_mesh_attends_with_its_own_rows_and_heads():
    mask = AttentionMask(query_segments=PACKED, key_segments=PACKED, visibility="causal")
    arguments = mask, PACKED > 0, QUERY, KEY, VALUE
    expected = attend(dense_core, *arguments)
    with partitioning.layout(
        partitioning.make_mesh({"data": 2, "expert": 1, "model": 2}, devices=jax.devices()[:4])
    ):
        found = attend(splash_core, *arguments)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=ROUNDING, rtol=ROUNDING)


def test_no_array_has_all_scores():
    mask = AttentionMask(visibility="causal")

    def text(core):
        return str(
            jax.make_jaxpr(functools.partial(attend, core))(mask, PACKED > 0, QUERY, KEY, VALUE)
        )

    assert f"{LENGTH},{LENGTH}]" in text(dense_core)
    assert f"{LENGTH},{LENGTH}]" not in text(splash_core)
    assert ",256,256]" not in text(splash_core)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bias": jnp.zeros((1, HEADS, LENGTH, LENGTH))}, "adds no bias"),
        ({"dropout": 0.1, "dropout_rng": jax.random.key(0)}, "has no dropout"),
        ({"mask": AttentionMask(prefix=jnp.ones((ROWS, LENGTH), bool))}, "this mask is another"),
    ],
)
def test_what_the_kernel_cannot_do_is_refused(given, message):
    settings = {"bias": None, "mask": AttentionMask(), "scale": 1.0} | given
    with pytest.raises(ValueError, match=f"{message}.*: set model.attention='dense'"):
        splash_core(QUERY, KeyValues.from_positions(KEY, VALUE), **settings)


def test_a_few_queries_after_a_cache_get_dense_attention():
    mask = AttentionMask(offset=7, visibility="causal")
    settings = {"bias": None, "mask": mask, "scale": 1.0}
    keys_values, query = KeyValues.from_positions(KEY[:, :9], VALUE[:, :9]), QUERY[:, :1]
    np.testing.assert_array_equal(
        splash_core(query, keys_values, **settings), dense_core(query, keys_values, **settings)
    )


@pytest.mark.parametrize(
    ("kind", "length", "given", "takes"),
    [
        ("TPU v4", 512, {}, True),
        ("TPU v3", 512, {}, False),
        ("TPU v4", 512, {"mask": AttentionMask(visibility="causal"), "dropout": 0.1}, True),
        ("TPU v4", 256, {}, False),
        ("TPU v4", 512, {"bias": np.zeros((1, HEADS, 512, 512), np.float32)}, False),
        ("TPU v4", 512, {"dropout": 0.1, "dropout_rng": jax.random.key(0)}, False),
        ("TPU v4", 512, {"mask": AttentionMask(prefix=np.ones((ROWS, 512), bool))}, False),
    ],
    ids=["plain", "old", "evaluated", "short", "bias", "dropout", "prefix"],
)
def test_auto_takes_it_on_a_tpu_where_it_fits(kind, length, given, takes, monkeypatch):
    monkeypatch.setattr(partitioning, "platform", lambda: "tpu")
    monkeypatch.setattr(partitioning, "device_kind", lambda: kind)
    core = select_core("auto")
    terms = {"bias": None, "mask": AttentionMask(), "scale": 1.0, "dropout": 0.0} | given
    terms = {"dropout_rng": None} | terms

    def run(query, key, value):
        return core(query, KeyValues.from_positions(key, value), **terms)

    rows = (jnp.zeros((ROWS, length, heads, WIDTH)) for heads in (HEADS, GROUPS, GROUPS))
    assert ("pallas_call" in str(jax.make_jaxpr(run)(*rows))) == takes


def test_rows_and_heads_that_devices_cannot_share_are_refused():
    settings = {"bias": None, "mask": AttentionMask(), "scale": 1.0}
    for shape, message in [
        ({"data": 4, "expert": 1, "model": 1}, "cuts batch into 4 equal parts.* divide 2"),
        ({"data": 1, "expert": 1, "model": 4}, "cuts kv_heads into 4 equal parts.* divide 2"),
    ]:
        mesh = partitioning.make_mesh(shape, devices=jax.devices()[:4])
        with partitioning.layout(mesh), pytest.raises(ValueError, match=message):
            splash_core(QUERY, KeyValues.from_positions(KEY, VALUE), **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "kernels"),
    [
        ("splash", list(products.SPLASH)),
        ("splash@256x128,fused", ["splash_mha_fwd", "splash_mha_dkv"]),
    ],
)
def test_libtpu_compiles_a_training_step_with_it(attention, kernels):
    settings = llama.get_config("demo")
    settings.model.update({"attention": attention, "dtype": "bfloat16"})
    settings.data.lengths = {"targets": 256}
    settings.mesh = {"data": 2, "fsdp": 1, "expert": 1, "model": 2}
    model = model_side.build(of_config(settings), devices=chips.topology("v5e:2x2").devices())
    text = compiling.compile_step(model, batches.batch(parse(settings).data))["update"].text
    assert "tpu_custom_call" in text
    assert [name for name in products.SPLASH if f"%{name}" in text] == kernels  # what a plan counts
    assert ",256,256]" not in text
