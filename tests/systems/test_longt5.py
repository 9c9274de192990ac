"""LongT5: its published sizes, what its encoder's tokens read, and what that costs."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from t5x_like import partitioning, systems
from t5x_like.losses import autoregressive
from t5x_like.nn.attention.positions import AttentionMask
from t5x_like.nn.blocks import Shared
from t5x_like.systems import longt5
from t5x_like.systems.longt5 import GlobalTokens
from t5x_like.systems.t5 import RelativePositionBias

TINY = longt5.SIZES["tglobal_base"] | {
    "vocab_size": 32,
    "d_model": 16,
    "d_ff": 24,
    "d_kv": 4,
    "heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "local_radius": 3,
    "global_block": 4,
}
LOCAL = TINY | {"encoder_attention": "local"}
# The sizes of T5 v1.1, and for global tokens a table and the norm of each layer. Hugging Face's
# LongT5ForConditionalGeneration has as many, with an output layer of its own.
PARAMETERS = {
    "local_base": 247_577_856,
    "local_large": 783_150_080,
    "tglobal_base": 247_587_456,
    "tglobal_large": 783_175_168,
    "tglobal_xl": 2_849_807_360,
}


def abstract(config):
    module = systems.build("longt5", config)
    return jax.eval_shape(module.init, jax.random.key(0), module.example_batch())["params"]


@pytest.mark.parametrize("size", longt5.SIZES)
def test_parameters_as_published(size):
    shapes = nn.unbox(abstract(longt5.SIZES[size]))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == PARAMETERS[size]


@pytest.fixture(scope="module")
def params():
    """Parameters of both attentions: the local one has no others."""
    module = systems.build("longt5", TINY)
    return nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch()))["params"]


def batch(source, target, *, source_segments=None, target_segments=None):
    rows = {"encoder_input_tokens": source, "decoder_input_tokens": target}
    if source_segments is not None:
        rows["encoder_segment_ids"] = source_segments
        rows["decoder_segment_ids"] = target_segments
    return {name: np.asarray(row, np.int32) for name, row in rows.items()}


def reads(config, params, *, length, token):
    """Which tokens change the encoder's output for one of them."""
    module = systems.build("longt5", config)
    tokens = np.arange(1, length + 1, dtype=np.int32)[None]

    def output(table):
        own = {**params, "token_embedder": {"embedding": table}}
        rows = batch(tokens, tokens[:, :1])
        return module.apply({"params": own}, rows, method=module.encode)[0][0, token].sum()

    moved = jax.jit(jax.grad(output))(params["token_embedder"]["embedding"])
    return np.flatnonzero(np.abs(np.asarray(moved)).max(axis=1)) - 1


def test_local_attention_reads_the_tokens_within_the_radius(params):
    # Two blocks of 4, and a third that is not full; the token is the second of the second block.
    found = reads(LOCAL, params, length=11, token=5)
    np.testing.assert_array_equal(found, np.arange(2, 9))


def test_global_tokens_are_read_from_anywhere(params):
    found = reads(TINY, params, length=11, token=0)
    np.testing.assert_array_equal(found, np.arange(11))
    # A row shorter than a global token has none.
    found = reads(TINY | {"global_block": 12}, params, length=11, token=0)
    np.testing.assert_array_equal(found, np.arange(4))


def test_the_global_token_of_each_token():
    """Documents of 6, 3 and 5 tokens, and padding; then padding on the left."""
    segments = jnp.array([[1] * 6 + [2] * 3 + [3] * 5 + [0] * 3, [0] * 2 + [1] * 9 + [0] * 6])
    tokens = GlobalTokens(block=4, make_bias=lambda name: RelativePositionBias(2, name=name))
    shared = Shared(mask=AttentionMask(key_segments=segments))
    found, _ = jax.jit(tokens.init_with_output)(jax.random.key(0), shared)
    packed = [0] * 6 + [-1] * 3 + [1] * 5 + [-1] * 3
    padded = [-1] * 2 + [0] * 4 + [1] * 5 + [-1] * 6
    np.testing.assert_array_equal(found.of_tokens, [packed, padded])
    np.testing.assert_array_equal(found.segments, [[1, 3, 0, 0], [1, 1, 0, 0]])
    sums = found.sums(jnp.arange(34.0).reshape(2, 17, 1))[..., 0]
    expected = [[sum(range(6)), sum(range(9, 14)), 0, 0]]
    expected += [[sum(range(19, 23)), sum(range(23, 28)), 0, 0]]
    np.testing.assert_array_equal(sums, expected)


def test_packed_documents_and_padding_change_nothing(params):
    """Three documents of a row have the logits that each has in a row of its own."""
    module = systems.build("longt5", TINY)
    apply = jax.jit(lambda rows: module.apply({"params": params}, rows))
    random = np.random.default_rng(0)
    lengths, places = (6, 3, 10), (0, 6, 9)
    source, target = random.integers(1, 32, 24), random.integers(1, 32, 24)
    rows = np.zeros((4, 4, 24), np.int64)  # [field, row, slot]
    for row, (length, place) in enumerate(zip(lengths, places, strict=True)):
        own = slice(place, place + length)
        alone = slice(row + 1, row + 1 + length)  # after padding
        for number, slots, segment in [(0, own, row + 1), (row + 1, alone, 1)]:
            rows[:2, number, slots] = source[own], target[own]
            rows[2:, number, slots] = segment
    logits = apply(batch(rows[0], rows[1], source_segments=rows[2], target_segments=rows[3]))
    for row, (length, place) in enumerate(zip(lengths, places, strict=True)):
        np.testing.assert_allclose(
            logits[0, place : place + length],
            logits[row + 1, row + 1 : row + 1 + length],
            atol=2e-5,  # float32 sums in another order
        )


def sizes(jaxpr):
    """The numbers of elements of all arrays of a program."""
    for eqn in jaxpr.eqns:
        yield from (math.prod(x.aval.shape) for x in eqn.outvars)
        for inner in jaxprs_in_params(eqn.params):
            yield from sizes(inner)


def largest(config, length):
    """The elements of the largest array in a loss and its gradient, for one row and two targets."""
    module = systems.build("longt5", config)
    shapes = nn.unbox(abstract(config))
    rows = batch(np.ones((1, length)), np.ones((1, 2)))
    rows |= {"decoder_target_tokens": np.ones((1, 2), np.int32)}
    rows |= {"decoder_loss_weights": np.ones((1, 2), np.float32)}

    def loss(params):
        return autoregressive.loss(module, params, rows, None)[0]

    return max(sizes(jax.make_jaxpr(jax.value_and_grad(loss))(shapes).jaxpr))


def test_no_array_grows_with_the_square_of_the_length():
    short, long = (largest(LOCAL, length) for length in (512, 1024))
    assert long == 2 * short
    assert long < 1024**2 / 8
    dense = LOCAL | {"local_radius": 1023}  # the count finds scores of all pairs
    assert largest(dense, 1024) >= 1024**2


def test_the_scores_of_global_tokens_are_fewer_by_the_tokens_that_they_stand_for():
    short, long = (largest(TINY | {"global_block": 16}, length) for length in (512, 1024))
    assert long < 1024**2 / 4
    assert long < 4 * short


@pytest.mark.slow
def test_a_gradient_on_a_mesh_of_eight_is_that_of_one_device(params):
    module = systems.build("longt5", TINY)  # local attention is a part of it
    random = np.random.default_rng(0)
    rows = batch(
        random.integers(1, 32, (4, 21)),
        random.integers(1, 32, (4, 9)),
        source_segments=np.repeat([[1] * 12 + [2] * 9], 4, axis=0),
        target_segments=np.repeat([[1] * 5 + [2] * 4], 4, axis=0),
    )
    rows["decoder_target_tokens"] = np.roll(rows["decoder_input_tokens"], -1, axis=1)
    rows["decoder_loss_weights"] = np.ones((4, 9), np.float32)

    def loss(params, rows):
        total, weight, _ = autoregressive.loss(module, params, rows, None)
        return total / weight

    gradient = jax.value_and_grad(loss)
    expected = jax.jit(gradient)(params, rows)
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 2, "model": 2})
    axes = nn.get_partition_spec(abstract(TINY))
    with partitioning.layout(mesh):
        spread = jax.device_put(params, partitioning.shardings(mesh, axes))
        found = jax.jit(gradient)(spread, partitioning.shard_batch(rows, mesh))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=5e-5), found, expected
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"encoder_attention": "global"},
            r"model\.encoder_attention='global' .* local, transient_global",
        ),
        ({"architecture": "decoder"}, r"model\.architecture='decoder' .* encoder, encoder_decoder"),
        ({"global_block": 0}, r"model\.global_block=0 must be 1 token or more"),
        ({"local_radius": -1}, r"model\.local_radius=-1 must be an integer, 0 or more"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        systems.build("longt5", TINY | settings)


def test_scores_of_all_pairs_cannot_be_collected(params):
    module = systems.build("longt5", TINY)
    rows = batch(np.ones((1, 9)), np.ones((1, 2)))
    with pytest.raises(ValueError, match="local attention never has the scores of all pairs"):
        module.apply({"params": params}, rows, collect=("attention_scores",))
