"""BigBird: its published sizes, its pattern, and no array of all pairs of tokens."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from t5x_like import partitioning, systems
from t5x_like.losses import forward
from t5x_like.nn.attention.block_sparse import BlockSparseAttention, Pattern
from t5x_like.nn.attention.positions import AttentionMask
from t5x_like.pretrained.loading import load
from t5x_like.pretrained.model import Pretrained
from t5x_like.pretrained.weight_source import open_source
from t5x_like.systems import bigbird, roberta

# Hugging Face's counts for `google/bigbird-roberta-base` and `-large`. BigBirdForMaskedLM has
# 590,592 more, a pooler that it does not read.
PUBLISHED = {
    ("base", "features"): 127_468_800,
    ("large", "features"): 359_123_968,
    ("base", "masked_lm"): 128_111_286 - 590_592,
    ("base", "pretraining"): 128_112_824,
}
TINY = bigbird.SIZES["base"] | {
    "vocab_size": 32,
    "positions": 64,
    "layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "block": 2,
    "random": 2,
    "dropout": 0.0,
}
LENGTH = 31  # 16 blocks, the last of them not full
# Float32 sums of some tens of terms of order 1, in another order.
ROUNDING = 2e-5


def abstract(config):
    module = systems.build("bigbird", config)
    return jax.eval_shape(module.init, jax.random.key(0), module.example_batch())["params"]


@pytest.mark.parametrize(("size", "head"), PUBLISHED)
def test_parameters_as_published(size, head):
    shapes = nn.unbox(abstract(bigbird.SIZES[size] | {"head": head}))
    found = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    assert found == PUBLISHED[size, head]


def test_random_blocks_are_fixed_by_layer_head_and_length():
    pattern = Pattern(block=2, random=2)
    chosen = pattern.choose(LENGTH, layers=2, heads=3)
    assert chosen.shape == (2, 3, 16, 2)
    np.testing.assert_array_equal(chosen, pattern.choose(LENGTH + 1, layers=2, heads=3))
    np.testing.assert_array_equal(chosen[:1, :2], pattern.choose(LENGTH, layers=1, heads=2))
    assert len({each.tobytes() for each in chosen.reshape(6, -1)}) == 6
    for query in range(16):
        near = {0, 15, query - 1, query, query + 1}
        for blocks in chosen[:, :, query].reshape(-1, 2):
            assert len({*blocks}) == 2
            assert not near & {*blocks}
    # All others are as likely: of 11 each has 2/11 of 300 draws, 55 with a deviation of 7.
    many = pattern.choose(LENGTH, layers=100, heads=3)[:, :, 8]
    counts = np.bincount(many.ravel(), minlength=16)[[1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14]]
    assert 55 - 5 * 7 < counts.min() <= counts.max() < 55 + 5 * 7


@pytest.mark.parametrize(
    ("parts", "near"),
    [
        # Zaheer et al. 2020, section 2: random keys are any keys. Only what the query attends to
        # anyway is left out, so that it does not count twice.
        (("random",), set()),
        (("window", "random"), {7, 8, 9}),
        (("random", "global"), {0, 15}),
    ],
)
def test_random_blocks_avoid_only_what_the_query_attends_to_anyway(parts, near):
    pattern = Pattern(block=2, random=2, parts=parts)
    many = pattern.choose(LENGTH, layers=100, heads=3)[:, :, 8]
    assert set(many.ravel().tolist()) == set(range(16)) - near
    edge = pattern.choose(LENGTH, layers=100, heads=3)[:, :, 0]
    assert (15 in edge) == ("global" not in parts)


def allowed_by_hand(pattern, blocks, segments, packed):
    """The matrix of keys [B, H, T, T] that each query attends to, by the definition."""
    number = blocks.shape[1]
    of_block = np.zeros((blocks.shape[0], number, number), bool)
    for head, query in np.ndindex(of_block.shape[:2]):
        row = of_block[head, query]
        if "random" in pattern.parts:
            row[blocks[head, query]] = True
        if "window" in pattern.parts:
            row[max(query - 1, 0) : query + 2] = True
        if "global" in pattern.parts:
            row[[0, -1]] = True
            row |= query in (0, number - 1)
    of_token = of_block.repeat(2, axis=1).repeat(2, axis=2)[:, :LENGTH, :LENGTH]
    allowed = of_token[None] & (segments > 0)[:, None, None, :]
    if packed:
        allowed &= (segments[:, :, None] == segments[:, None, :])[:, None]
    return allowed


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("parts", "random"),
    [
        *((parts, 2) for parts in bigbird.ATTENTION_PARTS.values() if parts),
        (bigbird.ATTENTION_PARTS["window|random|global"], 0),
    ],
)
def test_it_is_dense_attention_under_the_pattern_s_mask(parts, random, packed):
    pattern = Pattern(block=2, random=random, parts=parts)
    blocks = pattern.choose(LENGTH, layers=1, heads=2)[0]
    module = BlockSparseAttention(heads=2, width=4, pattern=pattern, use_bias=True)
    x = jax.random.normal(jax.random.key(0), (2, LENGTH, 8))
    segments = np.ones((2, LENGTH), np.int32)
    segments[0, 12:], segments[1, 20:] = 2 if packed else 1, 0
    mask = AttentionMask(query_segments=segments if packed else None, key_segments=segments)

    def run(module, x, extra):
        keys_values = module.keys_values(x)
        return module.attend(x, keys_values, mask=mask, extra=extra)[0]

    params = module.init(jax.random.key(1), x, None, method=run)
    found = jax.jit(functools.partial(module.apply, method=run))(params, x, blocks)

    query, key, value = (
        np.einsum("BLD,DHK->BLHK", x, p["kernel"]) + p["bias"]
        for p in (nn.unbox(params)["params"][name] for name in ("query", "key", "value"))
    )
    allowed = allowed_by_hand(pattern, blocks, segments, packed)
    scores = np.where(allowed, np.einsum("BTHK,BSHK->BHTS", query, key) / 2, -1e9)
    weights = np.exp(scores - scores.max(-1, keepdims=True)) * allowed
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-30)
    out = nn.unbox(params)["params"]["out"]
    mixed = np.einsum("BHTS,BSHK->BTHK", weights, value)
    expected = np.einsum("BTHK,HKD->BTD", mixed, out["kernel"]) + out["bias"]
    real = (segments > 0) & allowed.any(-1).all(1)  # random blocks may be of other documents
    assert real.sum() > LENGTH
    np.testing.assert_allclose(found[real], expected[real], atol=ROUNDING)


def batch(rows=2, length=LENGTH):
    tokens = np.random.default_rng(0).integers(4, 32, (rows, length)).astype(np.int32)
    return {"encoder_input_tokens": tokens, "encoder_segment_ids": np.ones_like(tokens)}


@functools.cache
def make():
    module = systems.build("bigbird", TINY)
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch()))["params"]
    return module, jax.tree.map(lambda x: x * 5, params)


def arrays(jaxpr):
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            yield from arrays(inner)


def test_there_is_no_score_for_each_pair_of_tokens():
    module, params = make()
    length = 512
    module = systems.build("bigbird", TINY | {"positions": length})
    table = jnp.zeros((length, 16))
    position = params["embeddings"]["position"] | {"embedding": table}
    params = params | {"embeddings": params["embeddings"] | {"position": position}}
    rows = batch(rows=1, length=length)
    jaxpr = jax.make_jaxpr(jax.grad(lambda p: forward(module, p, rows, None)["logits"].sum()))
    sizes = [math.prod(shape) for shape in arrays(jaxpr(params).jaxpr)]
    # The keys of 256 blocks for one of the two heads: 14 of them, 8 wide.
    assert max(sizes) == 256 * 14 * 8 < length * length


def test_short_texts_have_dense_attention():
    pattern = Pattern(block=2, random=2)
    assert pattern.is_dense(18)
    assert not pattern.is_dense(19)


def value_and_gradient(module):
    def loss(params, rows):
        return jnp.mean(forward(module, params, rows, None)["logits"] ** 2)

    return jax.jit(jax.value_and_grad(loss))


def test_a_gradient_on_a_mesh_of_eight_is_that_of_one_device():
    module, params = make()
    rows = batch(rows=4)
    expected = value_and_gradient(module)(params, rows)
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 2, "model": 2})
    axes = nn.get_partition_spec(abstract(TINY))
    with partitioning.layout(mesh):
        spread = jax.device_put(params, partitioning.shardings(mesh, axes))
        found = value_and_gradient(module)(spread, partitioning.shard_batch(rows, mesh))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=5e-5), found, expected
    )


@pytest.fixture(scope="module")
def roberta_folder(tmp_path_factory):
    """A RoBERTa of 16 positions as Hugging Face stores it, and its model."""
    same = ("vocab_size", "layers", "d_model", "d_ff", "heads", "dropout")
    config = roberta.SIZES["base"] | {name: TINY[name] for name in same} | {"positions": 16}
    module = systems.build("roberta", config)
    params = nn.unbox(jax.jit(module.init)(jax.random.key(3), module.example_batch()))["params"]
    params = jax.tree.map(lambda x: x * 5, params)
    model = Pretrained(module, params, system="roberta", config=config)
    model.save_pretrained(folder := tmp_path_factory.mktemp("roberta"))
    return folder, model


def start_from(folder, config):
    module = systems.build("bigbird", config)
    source = open_source(folder)
    found = load(source, module, system="bigbird", config=config, dtype=np.float32, mesh=None)
    return module, found


def test_it_starts_from_roberta_with_repeated_positions(roberta_folder):
    folder, model = roberta_folder
    module, params = start_from(folder, TINY | {"attention_parts": "all"})
    expected = model.params
    found = params["embeddings"]["position"]["embedding"]
    rows = expected["embeddings"]["position"]["embedding"][2:]  # two are of padding
    assert rows.shape == (16, 16)
    np.testing.assert_array_equal(found, np.concatenate([rows] * 4))
    types = expected["embeddings"]["token_type"]["embedding"]
    np.testing.assert_array_equal(
        params["embeddings"]["token_type"]["embedding"], np.repeat(types, 2, axis=0)
    )
    for part in ("encoder", "head"):
        jax.tree.map(np.testing.assert_array_equal, params[part], expected[part])
    np.testing.assert_array_equal(
        params["embeddings"]["token"]["embedding"], expected["embeddings"]["token"]["embedding"]
    )

    rows = batch(length=12)
    logits = jax.jit(lambda p, rows: forward(module, p, rows, None)["logits"])
    own = logits(params, rows)
    theirs = jax.jit(lambda p: forward(model.module, p, rows, None)["logits"])(expected)
    # The approximate GELU and another epsilon of the norms, of logits with a deviation of 3.
    assert np.abs(own - theirs).max() < 0.02 < theirs.std()
    # Behind the first 16 positions come the same again.
    positions = np.broadcast_to(np.arange(12), (2, 12))
    first, second = (logits(params, rows | {"encoder_positions": positions + n}) for n in (0, 32))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"vocab_size": 40},
            r"model\.vocab_size=40: the model of system 'roberta' to start from has 32 tokens; set",
        ),
        ({"positions": 40}, r"model\.positions=40 must be a multiple of the 16 positions"),
    ],
)
def test_a_roberta_that_does_not_fit_is_refused(roberta_folder, settings, message):
    with pytest.raises(ValueError, match=message):
        start_from(roberta_folder[0], TINY | settings)


def test_an_ablation_has_no_class_at_hugging_face(tmp_path):
    module, params = make()
    config = TINY | {"attention_parts": "window"}
    model = Pretrained(module, params, system="bigbird", config=config)
    with pytest.raises(ValueError, match=r"model\.attention_parts='window': Hugging Face"):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention_parts": "windows"}, r"model\.attention_parts.*'window'"),
        ({"random_blocks": "none"}, r"model\.random_blocks.*fixed"),
        ({"block": 0}, r"model\.block=0 must be 1 or more"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        systems.build("bigbird", TINY | settings)
