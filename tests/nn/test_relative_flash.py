"""Flash attention with T5's relative position bias, interpreted, beside dense attention."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import t5 as config
from t5x_like import partitioning, systems
from t5x_like.config import parse
from t5x_like.decoding.generator import Generator
from t5x_like.decoding.settings import GenerationSettings
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.losses import autoregressive
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.cores import dense_core
from t5x_like.nn.attention.positions import AttentionMask, RelativeBias
from t5x_like.nn.attention.relative_flash import relative_flash_core
from t5x_like.research.planning import batches, chips, compiling, hlo, products
from t5x_like.systems import t5, umt5

ROWS, LENGTH, HEADS, WIDTH = 2, 300, 2, 8  # three blocks of 128, the last one partly padding
# Softmaxes of 300 scores of order 5, and sums of as many float32 numbers, in another order.
ROUNDING = 1e-4

PACKED = np.repeat(np.array([[1, 2, 0], [1, 2, 3]]), [150, 100, 50], axis=1)
PADDED = (np.arange(LENGTH) < np.array([[300], [190]])).astype(np.int32)


def draw(seed, length=LENGTH, heads=HEADS):
    values = np.random.default_rng(seed).normal(size=(ROWS, length, heads, WIDTH))
    return jnp.asarray(values, jnp.float32)


QUERY, KEY, VALUE = draw(0), draw(1), draw(2)
TABLE = jnp.asarray(np.random.default_rng(3).normal(size=(32, HEADS)), jnp.float32)


@functools.partial(jax.jit, static_argnums=0, static_argnames=("distance", "dropout"))
def attend(core, mask, query, key, value, table, *, distance=128, dropout=0.0):
    """The values at real queries, and the gradients of a sum of them."""
    queries, keys = query.shape[1], key.shape[1]
    real = mask.segments(batch=ROWS, queries=queries, keys=keys)[0] > 0

    def run(query, key, value, table):
        bias = None
        if table is not None:
            bias = RelativeBias(
                table, bidirectional=mask.visibility == "full", max_distance=distance
            )
            if not core.knows_relative_bias:
                bias = bias.dense(queries=queries, keys=keys, dtype=query.dtype)
        out = core(
            query,
            KeyValues.from_positions(key, value),
            bias=bias,
            mask=mask,
            scale=0.7,
            dropout=dropout,
            dropout_rng=jax.random.key(0) if dropout else None,
            dropout_broadcast=True,
        )
        out = jnp.where(real[..., None, None], out, 0.0)
        return jnp.sum(out * jnp.cos(jnp.arange(query.shape[3]))), out

    numbers = tuple(range(3 if table is None else 4))
    return jax.value_and_grad(run, argnums=numbers, has_aux=True)(query, key, value, table)


def assert_as_dense(mask, query=QUERY, key=KEY, value=VALUE, table=TABLE, **settings):
    expected, found = (
        attend(core, mask, query, key, value, table, **settings)
        for core in (dense_core, relative_flash_core)
    )
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.abs(b).max() > 0.0
        np.testing.assert_allclose(a, b, atol=ROUNDING, rtol=ROUNDING)


@pytest.mark.parametrize(
    ("segments", "visibility"), [(PACKED, "causal"), (PADDED, "full")], ids=["packed", "padded"]
)
def test_values_and_gradients_are_those_of_dense_attention(segments, visibility):
    mask = AttentionMask(query_segments=segments, key_segments=segments, visibility=visibility)
    assert_as_dense(mask)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "settings"),
    [
        (512, {"visibility": "causal"}),  # a block of several tiles
        (640, {"visibility": "full"}),  # tiles beyond the largest distance, on both sides
    ],
)
def test_blocks_and_tiles_of_other_lengths_are_right(length, settings):
    arrays = (draw(seed, length) for seed in range(3))
    assert_as_dense(AttentionMask(**settings), *arrays)


@pytest.mark.slow
@pytest.mark.parametrize(("buckets", "distance"), [(8, 20), (64, 256)])
def test_buckets_and_the_largest_distance_are_settings(buckets, distance):
    table = jnp.asarray(np.random.default_rng(4).normal(size=(buckets, HEADS)), jnp.float32)
    assert_as_dense(AttentionMask(visibility="full"), table=table, distance=distance)


@pytest.mark.slow
def test_attention_to_another_number_of_keys_has_no_bias():
    segments = np.repeat(np.array([[1, 2, 0], [1, 1, 2]]), [40, 30, 30], axis=1)
    mask = AttentionMask(query_segments=segments, key_segments=PACKED)
    assert_as_dense(mask, query=draw(5, length=100), table=None)


@pytest.mark.slow
def test_dropout_of_whole_keys_is_that_of_dense_attention():
    assert_as_dense(AttentionMask(key_segments=PADDED), dropout=0.3)


@pytest.mark.slow
def test_bfloat16_is_as_close_to_float32_as_dense_attention():
    mask = AttentionMask(query_segments=PACKED, key_segments=PACKED, visibility="causal")
    whole = attend(dense_core, mask, QUERY, KEY, VALUE, TABLE)
    rounded = [x.astype(jnp.bfloat16) for x in (QUERY, KEY, VALUE)]

    def distances(core):
        found = attend(core, mask, *rounded, TABLE)
        pairs = zip(jax.tree.leaves(found), jax.tree.leaves(whole), strict=True)
        return [float(np.sqrt(np.mean(np.square(np.float32(a) - b)))) for a, b in pairs]

    # The first number is a sum, in which errors cancel.
    for ours, dense in zip(
        distances(relative_flash_core)[1:], distances(dense_core)[1:], strict=True
    ):
        assert ours < 1.2 * dense


@pytest.mark.slow
def test_each_device_of_a_mesh_attends_with_its_own_rows_and_heads():
    mask = AttentionMask(query_segments=PACKED, key_segments=PACKED, visibility="causal")
    with partitioning.layout(
        partitioning.make_mesh({"data": 2, "expert": 1, "model": 2}, devices=jax.devices()[:4])
    ):
        assert_as_dense(mask)


@pytest.mark.slow
def test_queries_without_a_key_are_finite():
    found = attend(
        relative_flash_core,
        AttentionMask(key_segments=np.zeros((ROWS, LENGTH), np.int32)),
        *(QUERY, KEY, VALUE, TABLE),
    )
    for x in jax.tree.leaves(found):
        np.testing.assert_array_equal(x, 0.0)


def test_no_array_has_all_scores_or_biases():
    mask = AttentionMask(visibility="causal")

    def text(core):
        return str(jax.make_jaxpr(functools.partial(attend, core))(mask, QUERY, KEY, VALUE, TABLE))

    assert f"{LENGTH},{LENGTH}]" in text(dense_core)
    assert f"{LENGTH},{LENGTH}]" not in text(relative_flash_core)
    assert ",384,384]" not in text(relative_flash_core)


BIAS = RelativeBias(TABLE)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bias": jnp.zeros((1, HEADS, LENGTH, LENGTH))}, "adds only T5.s relative position bias"),
        ({"dropout": 0.1, "dropout_rng": jax.random.key(0)}, "only where model.dropout_broadcast"),
        ({"mask": AttentionMask(prefix=jnp.ones((ROWS, LENGTH), bool))}, "this mask is another"),
        ({"mask": AttentionMask(visibility="prefix")}, "this mask is another"),
        ({"mask": AttentionMask(window=9)}, "this mask is another"),
        ({"bias": RelativeBias(TABLE, max_distance=16384)}, "needs 13 MiB on the chip for 300"),
    ],
)
def test_what_the_kernel_cannot_do_is_refused(given, message):
    settings = {"bias": BIAS, "mask": AttentionMask(), "scale": 1.0} | given
    with pytest.raises(ValueError, match=f"{message}.* set model.attention='dense'"):
        relative_flash_core(QUERY, KeyValues.from_positions(KEY, VALUE), **settings)


def test_grouped_heads_are_refused():
    settings = {"bias": BIAS, "mask": AttentionMask(), "scale": 1.0}
    with pytest.raises(ValueError, match="no grouped heads"):
        relative_flash_core(
            QUERY, KeyValues.from_positions(KEY[:, :, :1], VALUE[:, :, :1]), **settings
        )


def test_a_few_queries_after_a_cache_get_dense_attention():
    mask = AttentionMask(offset=7, visibility="causal")
    bias = RelativeBias(TABLE, offset=7, bidirectional=False)
    settings = {"mask": mask, "scale": 1.0}
    query, keys_values = QUERY[:, :1], KeyValues.from_positions(KEY[:, :9], VALUE[:, :9])
    dense = bias.dense(queries=1, keys=9, dtype=jnp.float32)
    np.testing.assert_array_equal(
        relative_flash_core(query, keys_values, bias=bias, **settings),
        dense_core(query, keys_values, bias=dense, **settings),
    )


SMALL = {"vocab_size": 40, "d_model": 16, "d_ff": 24, "heads": 2, "d_kv": 8}
SMALL |= {"encoder_layers": 2, "decoder_layers": 2}


@pytest.mark.slow
@pytest.mark.parametrize("system", [t5, umt5])  # one bias for all layers, and one for each
def test_a_network_has_the_loss_and_gradients_that_dense_attention_gives(system):
    sizes = SMALL | {"dropout": 0.1, "remat": "attention"}
    tokens = {
        side: np.random.default_rng(n).integers(1, 40, size=(ROWS, length))
        for n, (side, length) in enumerate({"encoder": LENGTH, "decoder": 70}.items())
    }
    batch = {f"{side}_input_tokens": jnp.asarray(x) for side, x in tokens.items()}
    batch["decoder_target_tokens"] = batch["decoder_input_tokens"]
    batch["decoder_loss_weights"] = jnp.ones((ROWS, 70))

    def result(attention, params=None):
        module = systems.build(
            system.SYSTEM.name, system.SIZES["small"] | sizes | {"attention": attention}
        )
        if params is None:
            params = nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch()))
            params = params["params"]

        def loss(params):
            sums = autoregressive.loss(module, params, batch, jax.random.key(1))
            return sums[0] / sums[1]

        return params, jax.jit(jax.value_and_grad(loss))(params)

    params, expected = result("dense")
    _, found = result("relative_flash", params)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=ROUNDING, rtol=ROUNDING)


@pytest.mark.slow
@pytest.mark.parametrize("system", [t5, umt5])
def test_a_network_generates_what_it_does_with_dense_attention(system):
    tokens = np.random.default_rng(0).integers(2, 40, size=(ROWS, 70))
    settings = GenerationSettings(max_new_tokens=5, min_new_tokens=5, num_beams=2)

    def generated(attention):
        module = systems.build(
            system.SYSTEM.name, system.SIZES["small"] | SMALL | {"attention": attention}
        )
        params = nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch()))
        return Generator(module, params["params"]).generate(tokens, tokens > 0, settings)

    np.testing.assert_array_equal(generated("relative_flash"), generated("dense"))


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["v4:2x2x1", "v5e:2x2", "v6e:2x2"])
@pytest.mark.parametrize(("length", "distance"), [(512, 128), (8192, 4096)])
def test_libtpu_compiles_it(topology, length, distance):
    mesh = partitioning.make_mesh(
        {"data": 2, "expert": 1, "model": 2}, devices=chips.topology(topology).devices()
    )
    row = jax.ShapeDtypeStruct(
        (ROWS, length, 4, 64), jnp.bfloat16, sharding=partitioning.batch_sharding(mesh)
    )
    table = jax.ShapeDtypeStruct((32, 4), jnp.float32)
    with partitioning.layout(mesh):
        lowered = attend.lower(
            relative_flash_core, AttentionMask(), row, row, row, table, distance=distance
        )
        text = lowered.compile().as_text()
    assert text.count('custom_call_target="tpu_custom_call"') == 2  # forward and backward
    assert f",{length},{length}]" not in text
    # Its products count: two of all pairs forward and five backward, of a row and two heads here.
    assert products.flops(hlo.parse(text)) == 7 * 2 * 2 * length**2 * 64


@pytest.mark.slow
def test_libtpu_compiles_a_training_step_with_it():
    settings = config.get_config("base")
    settings.model.update({"encoder_layers": 2, "decoder_layers": 2, "vocab_size": 1000})
    settings.model.update({"attention": "relative_flash", "dtype": "bfloat16", "dropout": 0.1})
    settings.data.update({"batch_size": 4, "lengths": {"inputs": 384, "targets": 384}})
    settings.mesh = {"data": 2, "fsdp": 1, "expert": 1, "model": 2}
    model = model_side.build(of_config(settings), devices=chips.topology("v5e:2x2").devices())
    text = compiling.compile_step(model, batches.batch(parse(settings).data))["update"].text
    # In encoder, decoder and between them, forward and backward, in loops over layers.
    assert text.count('custom_call_target="tpu_custom_call"') == 6
    assert ",6,384,384]" not in text  # of a device's heads
