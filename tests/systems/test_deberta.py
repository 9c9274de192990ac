"""DeBERTa: its published sizes, its attention, its mask decoder, the convolution of version 2."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from configs import deberta as configs
from t5x_like import partitioning, systems
from t5x_like.experiment.run import of_config
from t5x_like.losses import forward
from t5x_like.nn.blocks import Shared
from t5x_like.nn.stack import unstack_layers
from t5x_like.pretrained.model import Pretrained
from t5x_like.systems import deberta, deberta_v2
from t5x_like.systems.deberta import relative_rows

# Hugging Face's counts for `microsoft/deberta-base`, `-large` and `microsoft/deberta-v3-*`.
PUBLISHED = {
    ("base", "features"): 138_601_728,
    ("base", "masked_lm"): 139_244_121,
    ("large", "features"): 405_163_008,
    ("v3_small", "features"): 141_304_320,
    ("v3_base", "features"): 183_831_552,
    ("v3_large", "features"): 434_012_160,
}
SYSTEMS = {name: system for system in (deberta, deberta_v2) for name in system.SIZES}
SMALL = {
    "vocab_size": 32,
    "positions": 12,
    "relative_span": 3,
    "layers": 3,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "dropout": 0.0,
}
TINY = deberta.SIZES["base"] | SMALL
# Version 2: a convolution, buckets, a norm of the table, shared projections.
TINY_V2 = deberta_v2.SIZES["v3_base"] | SMALL | {"relative_buckets": 2, "convolution": 3}
# Float32 sums of some tens of terms of order 1, in another order.
ROUNDING = 5e-5


def count(system, config):
    module = systems.build(system.SYSTEM.name, config)
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nn.unbox(boxed)))


@pytest.mark.parametrize(("size", "head"), PUBLISHED)
def test_parameters_as_published(size, head):
    system = SYSTEMS[size]
    config = system.SIZES[size] | {"head": head, "mask_decoder": False}
    assert count(system, config) == PUBLISHED[size, head]


def test_the_mask_decoder_adds_the_absolute_positions_alone():
    assert count(deberta, TINY) - count(deberta, TINY | {"mask_decoder": False}) == 12 * 16
    features = TINY | {"head": "features"}
    assert count(deberta, features) == count(deberta, features | {"mask_decoder": False})


def make(config):
    """The network and parameters so large that what one of them changes is seen in float32."""
    name = "deberta_v2" if "convolution" in config else "deberta"
    module = systems.build(name, config)
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch()))["params"]
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noise = [x + 0.2 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    return module, jax.tree.unflatten(structure, noise)


@functools.cache
def version(convolution):
    return make(TINY_V2 if convolution else TINY)


@functools.cache
def logits(convolution):
    module, _ = version(convolution)
    return jax.jit(lambda params, batch: forward(module, params, batch, None)["logits"])


TOKENS = np.random.default_rng(0).integers(4, 32, (2, 9)).astype(np.int32)
BATCH = {"encoder_input_tokens": TOKENS, "encoder_segment_ids": np.ones_like(TOKENS)}


def test_rows_of_the_table():
    assert relative_rows(range(-9, 10, 3), span=4, buckets=0).tolist() == [0, 0, 1, 4, 7, 7, 7]
    # 16 buckets each way up to a distance of 512: beyond 8 on a logarithmic scale. The rows are
    # those of make_log_bucket_position in transformers 5.23.0, plus 16, clamped.
    distances = [0, 1, 7, 8, 9, 12, 16, 64, 100, 300, 511, 512, 2000]
    expected = [16, 17, 23, 24, 25, 25, 26, 28, 29, 31, 31, 31, 31]
    assert relative_rows(distances, span=512, buckets=16).tolist() == expected
    other_way = [16, 15, 9, 8, 7, 7, 6, 4, 3, 1, 1, 0, 0]
    negative = [-distance for distance in distances]
    assert relative_rows(negative, span=512, buckets=16).tolist() == other_way


@pytest.mark.parametrize("terms", deberta.TERMS)
def test_scores_are_the_terms_of_equation_4(terms):
    config = TINY | {"terms": terms, "layers": 1, "head": "features"}
    module, params = make(config)
    collect = jax.jit(
        functools.partial(module.apply, collect=("hidden_states", "attention_scores"))
    )
    collected = collect({"params": params}, BATCH)[1]["encoder"]
    p = jax.tree.map(np.asarray, params["encoder"]["layers"]["stack"]["block"]["self_attention"])
    p = jax.tree.map(lambda x: x[0], p)
    x = np.asarray(collected.hidden_states[0])

    def project(name, x):
        y = np.einsum("...D,DHK->...HK", x, p[name]["kernel"])
        return y + p[name].get("bias", 0)

    query, key = project("query", x), project("key", x)
    assert "bias" not in p["key"]
    number = len(deberta.TERMS[terms])
    expected = np.zeros((2, 2, 9, 9))
    for i in range(9):
        for j in range(9):
            row = min(max(i - j + 3, 0), 5)  # delta(i, j), also in the last term: see the class
            score = query[:, i] * key[:, j]
            if "c2p" in terms:
                table = params["encoder"]["extra"]["embedding"][row]
                score = score + query[:, i] * project("position_key", table)
            if "p2c" in terms:
                table = params["encoder"]["extra"]["embedding"][row]
                score = score + key[:, j] * project("position_query", table)
            expected[:, :, i, j] = score.sum(-1) / np.sqrt(8 * (1 + number))
    np.testing.assert_allclose(collected.attention_scores[0], expected, atol=ROUNDING)


def arrays(jaxpr):
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            yield from arrays(inner)


def test_there_is_no_vector_for_each_pair_of_tokens():
    module, params = version(False)
    tokens = jnp.zeros((1, 12), jnp.int32)
    batch = {"encoder_input_tokens": tokens, "encoder_segment_ids": tokens + 1}
    jaxpr = jax.make_jaxpr(jax.grad(lambda p: forward(module, p, batch, None)["logits"].sum()))
    # The scores of 12 queries and 23 distances in 2 heads, padded; vectors of width 8 would be
    # 12 * 12 * 2 * 8.
    sizes = map(math.prod, arrays(jaxpr(params).jaxpr))
    assert max(sizes) < 12 * 12 * 2 * 8


# Two steps of the last layer, as in the paper; one step; two steps of different layers.
STEPS = [{}, {"decoder_steps": 1}, {"shared_steps": False}]


def decoded_by_hand(params, batch, *, layers):
    """The mask decoder, one layer after another: He et al. 2020, section 3.2.

    Args:
        layers: the layers of its steps.
    """
    config = TINY | {"head": "features", "layers": 2, "loop": "unroll"}
    own = unstack_layers(params["encoder"]["layers"]["stack"], layers=3)
    first = {"stack": {name: own[name] for name in ("layer_0", "layer_1")}}
    below = {
        "embeddings": params["embeddings"],
        "encoder": {"layers": first, "extra": params["encoder"]["extra"]},
    }
    module = systems.build("deberta", config)
    hidden = forward(module, below, batch, None)["hidden"]
    block = deberta.block(deberta.ReleasedConfig(**TINY))(parent=None)
    shared = Shared(
        mask=module.mask(batch), memory=hidden, extra=params["encoder"]["extra"]["embedding"]
    )
    x = hidden + params["encoder"]["layers"]["position"]["embedding"][:9]
    for layer in layers:
        x, _ = block.apply({"params": layer}, x, shared, None)
    return x


@pytest.mark.parametrize("loop", ["scan", "unroll"])
@pytest.mark.parametrize("steps", STEPS, ids=str)
def test_the_mask_decoder_applies_its_layers_to_the_positions(loop, steps):
    _, params = make(TINY | steps)
    stacks = params["encoder"]["layers"]
    apart = {"stack": unstack_layers(stacks["stack"], layers=3)}
    last = apart["stack"]["layer_2"]
    layers = [last] * (TINY | steps)["decoder_steps"]
    if "steps" in stacks:
        apart["steps"] = unstack_layers(stacks["steps"], layers=1)
        layers = [last, apart["steps"]["layer_0"]]
    expected = jax.jit(decoded_by_hand)(params, BATCH, layers=layers)
    if loop == "unroll":
        params = params | {"encoder": params["encoder"] | {"layers": stacks | apart}}
    module = systems.build("deberta", TINY | steps | {"loop": loop, "remat": "full"})
    encode = jax.jit(functools.partial(module.apply, method="encode"))
    np.testing.assert_allclose(encode({"params": params}, BATCH), expected, atol=ROUNDING)


def test_a_mask_decoder_of_different_layers_has_one_more_in_pretraining_alone():
    apart = TINY | {"shared_steps": False}
    layer = count(deberta, TINY | {"layers": 4}) - count(deberta, TINY)
    assert count(deberta, apart) - count(deberta, TINY) == layer
    features = {"head": "features"}
    assert count(deberta, apart | features) == count(deberta, TINY | features)


@pytest.mark.parametrize("convolution", [False, True])
def test_documents_of_a_packed_row_do_not_see_each_other(convolution):
    _, params = version(convolution)
    lengths = (4, 3)
    segments = np.repeat([1, 2, 0], [*lengths, 2])
    positions = np.concatenate([np.arange(4), np.arange(3), [0, 0]])
    packed = {
        "encoder_input_tokens": TOKENS[:1],
        "encoder_segment_ids": segments[None].astype(np.int32),
        "encoder_positions": positions[None].astype(np.int32),
    }
    found = logits(convolution)(params, packed)[0]
    own = np.zeros((2, 9), np.int32)
    own[0, :4], own[1, :3] = TOKENS[0, :4], TOKENS[0, 4:7]
    alone = {
        "encoder_input_tokens": own,
        "encoder_segment_ids": (own > 0).astype(np.int32),
        "encoder_positions": np.tile(np.arange(9, dtype=np.int32), (2, 1)),
    }
    first, second = logits(convolution)(params, alone)
    np.testing.assert_allclose(found[:4], first[:4], atol=ROUNDING)
    np.testing.assert_allclose(found[4:7], second[:3], atol=ROUNDING)


@pytest.mark.slow
def test_a_gradient_on_a_mesh_of_eight_is_that_of_one_device():
    module, params = version(True)
    rows = {name: np.tile(value, (2, 1)) for name, value in BATCH.items()}

    def value_and_gradient(params, batch):
        def loss(params):
            return jnp.mean(forward(module, params, batch, None)["logits"] ** 2)

        return jax.value_and_grad(loss)(params)

    expected = jax.jit(value_and_gradient)(params, rows)
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 2, "model": 2})
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    axes = nn.get_partition_spec(boxed)["params"]
    with partitioning.layout(mesh):
        spread = jax.device_put(params, partitioning.shardings(mesh, axes))
        found = jax.jit(value_and_gradient)(spread, partitioning.shard_batch(rows, mesh))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=ROUNDING), found, expected
    )


def test_the_mask_decoder_has_no_class_at_hugging_face(tmp_path):
    module, params = version(False)
    model = Pretrained(module, params, system="deberta", config=TINY)
    with pytest.raises(ValueError, match=r"model\.mask_decoder=True.*head='features'"):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decoder_steps": 0}, r"model\.decoder_steps=0 must be 1 or more"),
        (
            {"decoder_steps": 3, "mask_decoder": False},
            "has no effect with model.mask_decoder=False",
        ),
        ({"shared_steps": False, "mask_decoder": False}, "effect with model.mask_decoder=False"),
        ({"shared_steps": False, "decoder_steps": 1}, "has no effect with model.decoder_steps=1"),
        ({"terms": "c2p+p2c"}, r"model\.terms.*'c2p\|p2c'"),
        ({"convolution": 2}, r"model\.convolution=2: choose an odd width, or 0"),
        ({"relative_buckets": 1}, r"model\.relative_buckets=1 with .*: choose 0, or from 2 to"),
        ({"relative_buckets": 6, "relative_span": 4}, "choose 0, or from 2 to 5$"),
        ({"convolution_activation": "relu"}, r"model\.convolution_activation"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        systems.build("deberta_v2", TINY_V2 | settings)


@pytest.mark.parametrize("size", ["demo", *SYSTEMS])
def test_configs_are_valid(size):
    of_config(configs.get_config(size))
