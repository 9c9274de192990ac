"""GPT-3: the sizes of its table, which layers see how far, its initialization, its cache."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import partitioning, systems
from t5x_like.nn.attention.cores import MASKED
from t5x_like.systems import gpt3
from t5x_like.training import flops

# By shape, from the rows of table 2.1, and in billions its first column.
COUNTS = {
    "small": (125_226_240, 0.125),
    "medium": (355_871_744, 0.350),
    "large": (760_300_032, 0.760),
    "xl": (1_517_123_584, 1.3),
    "2_7b": (2_651_553_280, 2.7),
    "6_7b": (6_658_404_352, 6.7),
    "13b": (12_936_488_380, 13.0),
    "175b": (174_604_259_328, 175.0),
}
WINDOW = 3
TINY = gpt3.SIZES["small"] | {
    "vocab_size": 61,
    "positions": 32,
    "layers": 4,
    "d_model": 24,
    "d_ff": 32,
    "heads": 3,
    "head_width": 10,
}
# The settings of each pattern: a pattern refuses what it does not read.
READ = {
    "banded": {"window": WINDOW},
    "strided": {"stride": 3},
    "fixed": {"stride": 3, "summary": 1},
}
# Child et al. 2019, section 4.3, with l = 3 and c = 1: each row is a set A_i. For `strided`
# A^(1) = {max(0, i - l), ..., i}, A^(2) = {j : (i - j) mod l = 0}; for `fixed`
# A^(1) = {j : j // l = i // l}, A^(2) = {j : j mod l in {l - c, ..., l - 1}}.
DRAWN = {
    "strided": (
        "1.......  11......  111.....  1111....  .1111...  ..1111..  ...1111.  ....1111",
        "1.......  .1......  ..1.....  1..1....  .1..1...  ..1..1..  1..1..1.  .1..1..1",
    ),
    "fixed": (
        "1.......  11......  111.....  ...1....  ...11...  ...111..  ......1.  ......11",
        "........  ........  ..1.....  ..1.....  ..1.....  ..1..1..  ..1..1..  ..1..1..",
    ),
}


@functools.cache
def make(pattern="banded", **changes):
    settings = TINY | {"pattern": pattern} | READ[pattern]
    module = systems.build("gpt3", settings | changes)
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    return module, init(jax.random.key(0))


@pytest.mark.parametrize("size", gpt3.SIZES)
def test_parameters_by_shape(size):
    module = systems.build("gpt3", gpt3.SIZES[size])
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nn.unbox(boxed)["params"]))
    assert count == COUNTS[size][0]
    if size != "xl":  # whose 24 heads of 128 make more: docs/systems/gpt3.md
        assert count / 1e9 == pytest.approx(COUNTS[size][1], rel=0.02)


def test_every_second_layer_sees_a_band_alone():
    def reached(layers):
        """Which tokens the last of 12 depends on, in a model with these layers' attention."""
        module, params = make(layers=2)

        def last(table):
            own = params | {"token_embedder": {"embedding": table}}
            # A layer whose output is nothing leaves the other.
            block = dict(own["decoder"]["layers"]["block"])
            for name in {"block_0", "block_1"} - set(layers):
                attention = block[name]["self_attention"]
                nothing = jax.tree.map(jnp.zeros_like, attention["out"])
                block[name] = block[name] | {"self_attention": attention | {"out": nothing}}
            own = own | {"decoder": own["decoder"] | {"layers": {"block": block}}}
            batch = {"decoder_input_tokens": jnp.arange(1, 13)[None]}
            return jnp.sum(module.apply({"params": own}, batch)[0, -1, :1])

        gradient = jax.jit(jax.grad(last))(params["token_embedder"]["embedding"])
        return (np.abs(np.asarray(gradient)).max(axis=1)[1:13] > 0).tolist()

    assert reached(["block_1"]) == [False] * (12 - WINDOW) + [True] * WINDOW
    assert reached(["block_0"]) == [True] * 12


def test_a_token_changes_what_comes_after_it_alone():
    module, params = make()
    tokens = jnp.arange(1, 13)[None]
    apply = jax.jit(lambda p, t: module.apply({"params": p}, {"decoder_input_tokens": t}))
    changed = np.abs(apply(params, tokens) - apply(params, tokens.at[0, 6].set(40))).max(axis=-1)
    assert (changed > 0)[0].tolist() == [False] * 6 + [True] * 6


def test_a_band_that_holds_the_whole_text_is_dense():
    module, params = make()
    wide = systems.build("gpt3", TINY | {"window": 32})
    tokens = {"decoder_input_tokens": jnp.arange(1, 13)[None]}
    narrow_logits, wide_logits = (
        jax.jit(lambda p, t, m=m: m.apply({"params": p}, t))(params, tokens) for m in (module, wide)
    )
    same = np.abs(narrow_logits - wide_logits).max(axis=-1)[0] < 1e-6  # sums in another order
    assert same.tolist() == [True] * WINDOW + [False] * (12 - WINDOW)


def drawn(pattern):
    """The masks [T, S] of even and of odd layers."""
    return [np.array([[c == "1" for c in row] for row in one.split()]) for one in DRAWN[pattern]]


def packed():
    """Two documents, the second of which begins within a block, and padding."""
    lengths = (8, 5)
    segments = np.repeat([1, 2, 0], [*lengths, 3])[None]
    positions = np.concatenate([np.arange(n) for n in (*lengths, 3)])[None]
    tokens = np.random.default_rng(2).integers(1, 61, segments.shape) * (segments > 0)
    return {
        "decoder_input_tokens": tokens,
        "decoder_segment_ids": segments,
        "decoder_positions": positions,
    }


def mask_of_packed(whole):
    mask = np.zeros((16, 16), bool)
    mask[:8, :8], mask[8:13, 8:13] = whole, whole[:5, :5]
    return mask


@pytest.mark.parametrize("pattern", DRAWN)
@pytest.mark.parametrize("packs", [False, True])
def test_layers_attend_to_the_sets_of_the_paper_in_turn(pattern, packs):
    module, params = make(pattern=pattern)
    expected, batch = drawn(pattern), {"decoder_input_tokens": jnp.arange(1, 9)[None]}
    if packs:
        expected, batch = [mask_of_packed(mask) for mask in expected], packed()
    _, collected = module.apply({"params": params}, batch, collect=("attention_scores",))
    scores = np.asarray(collected["decoder"].attention_scores)  # [N, 1, H, T, S]
    for layer, found in enumerate(scores[:, 0] > MASKED / 2):
        for head in found:
            assert np.array_equal(head, expected[layer % 2])


@pytest.mark.parametrize("pattern", DRAWN)
@pytest.mark.parametrize("packs", [False, True])
def test_blocks_and_columns_are_the_dense_attention_under_the_mask(pattern, packs):
    module, params = make(pattern=pattern)
    batch = packed()
    if not packs:
        batch = {"decoder_input_tokens": batch["decoder_input_tokens"]}
    found = module.apply({"params": params}, batch)
    expected, _ = module.apply({"params": params}, batch, collect=("attention_scores",))
    real = batch["decoder_segment_ids"] > 0 if packs else slice(None)
    # Sums of the same terms in another order.
    np.testing.assert_allclose(found[real], expected[real], atol=1e-5)


@pytest.mark.parametrize("pattern", DRAWN)
def test_no_pattern_sees_what_comes_after(pattern):
    module, params = make(pattern=pattern)
    tokens = jnp.arange(1, 13)[None]
    apply = jax.jit(lambda p, t: module.apply({"params": p}, {"decoder_input_tokens": t}))
    for place in range(12):
        changed = apply(params, tokens.at[0, place].set(40)) - apply(params, tokens)
        reached = np.abs(changed).max(axis=-1)[0] > 0
        assert not reached[:place].any()
        assert reached[place]


@pytest.mark.parametrize("pattern", DRAWN)
def test_a_gradient_on_a_mesh_of_eight_is_that_of_one_device(pattern):
    module, params = make(pattern=pattern, heads=4, layers=2, vocab_size=64)
    rows = {name: np.tile(value, (4, 1)) for name, value in packed().items()}
    rows["decoder_target_tokens"] = np.roll(rows["decoder_input_tokens"], -1, axis=1)
    rows["decoder_loss_weights"] = (rows["decoder_segment_ids"] > 0).astype(np.float32)

    @jax.jit
    def gradient(params, rows):
        return jax.value_and_grad(lambda p: gpt3.loss(module, p, rows, None)[0])(params)

    expected = gradient(params, rows)
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 2, "model": 2})
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    with partitioning.layout(mesh):
        axes = nn.get_partition_spec(boxed)["params"]
        spread = jax.device_put(params, partitioning.shardings(mesh, axes))
        found = gradient(spread, partitioning.shard_batch(rows, mesh))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)  # sums in another order


def test_tokens_that_attend_to_nothing_get_nothing():
    """In the first l - c tokens the output of A^(2) is 0, so that its parameters do not matter."""
    module, params = make(pattern="fixed", layers=2)
    block = params["decoder"]["layers"]["block"]["block_1"]
    own = block | {"self_attention": jax.tree.map(lambda x: x + 1.0, block["self_attention"])}
    layers = params["decoder"]["layers"]["block"] | {"block_1": own}
    other = params | {"decoder": params["decoder"] | {"layers": {"block": layers}}}
    batch = {"decoder_input_tokens": jnp.arange(1, 13)[None]}
    one, two = (module.apply({"params": each}, batch)[0] for each in (params, other))
    assert (np.abs(one - two).max(axis=-1) == 0).tolist() == [True] * 2 + [False] * 10


def test_the_scores_that_each_pattern_computes():
    """Of 64 x 64 pairs, with l = 8 and c = 2: blocks with their neighbor, columns, summaries."""
    batch = {"decoder_input_tokens": jax.ShapeDtypeStruct((1, 64), jnp.int32)}

    def count(**changes):
        settings = {"positions": 64, "attention": "dense", "layers": 2}
        module = systems.build("gpt3", TINY | settings | changes)
        shapes = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
        return flops.count(lambda p, b: module.apply(p, b), shapes, batch)

    dense = count(window=64)
    width = TINY["heads"] * TINY["head_width"]
    # Windows of 9 in 8 blocks of 9 queries and 18 keys; 8 columns of 8 x 8.
    strided = count(pattern="strided", stride=8)
    assert dense - strided == 2 * 2 * width * (2 * 64 * 64 - (8 * 9 * 18 + 8 * 8 * 8))
    # 8 blocks of 8 queries and 16 keys; 64 queries and 8 x 2 keys.
    fixed = count(pattern="fixed", stride=8, summary=2)
    assert dense - fixed == 2 * 2 * width * (2 * 64 * 64 - (8 * 8 * 16 + 64 * 16))


@pytest.mark.parametrize(
    ("loop", "pattern"),
    [
        ("scan", "banded"),
        ("scan", "strided"),
        ("scan", "fixed"),
        pytest.param("unroll", "banded", marks=pytest.mark.slow),
        pytest.param("unroll", "fixed", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("at_once", [1, 4])
def test_cached_steps_have_the_logits_of_a_whole_text_beside_padding_on_the_left(
    loop, pattern, at_once
):
    module, params = make(loop=loop, pattern=pattern)
    tokens = np.random.default_rng(1).integers(1, 61, (2, 14))
    mask = np.array([[True] * 6, [False] * 2 + [True] * 4])
    variables = {"params": params}
    prefill = jax.jit(functools.partial(module.apply, cache_length=14, method="prefill"))
    extend = jax.jit(functools.partial(module.apply, method="extend"))
    step_logits, cache = prefill(variables, np.where(mask, tokens[:, :6], 0), decoder_mask=mask)
    steps = [step_logits[:, None]]
    for place in range(6, 14, at_once):
        step_logits, cache = extend(variables, tokens[:, place : place + at_once], cache)
        steps.append(step_logits)
    for row, padding in enumerate((0, 2)):
        text = {"decoder_input_tokens": tokens[row : row + 1, padding:]}
        whole = jax.jit(module.apply)(variables, text)[0]
        found = np.concatenate(steps, 1)[row]
        # Sums of the same terms in another order.
        np.testing.assert_allclose(found, whole[5 - padding :], atol=1e-5)


def test_outputs_of_sublayers_are_initialized_smaller_by_the_root_of_2n():
    _, params = make(layers=8, d_model=48)
    for block in params["decoder"]["layers"]["block"].values():
        np.testing.assert_allclose(np.std(block["feed_forward"]["wi"]["kernel"]), 0.02, rtol=0.1)
        for part, name in (("self_attention", "out"), ("feed_forward", "wo")):
            np.testing.assert_allclose(np.std(block[part][name]["kernel"]), 0.005, rtol=0.1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"layers": 3}, r"model\.layers=3 must be even"),
        ({"window": 0}, r"model\.window=0 must be 1 or more for model\.pattern='banded'"),
        ({"pattern": "fixd"}, r"model\.pattern='fixd'.*fixed"),
        ({"pattern": "strided", "stride": 0}, r"model\.stride=0 must be 1 or more"),
        ({"pattern": "fixed", "summary": 0}, r"model\.summary=0 must be 1 or more"),
        (
            {"pattern": "fixed", "stride": 3, "summary": 4},
            r"model\.summary=4 must be at most model\.stride=3",
        ),
        ({"stride": 64}, r"model\.stride=64 has no effect with model\.pattern='banded'.*128$"),
        ({"summary": 4}, r"model\.summary=4 has no effect with model\.pattern='banded'.*8$"),
        ({"pattern": "strided", "summary": 4}, r"model\.summary=4 has no effect with .*'strided'"),
        ({"pattern": "fixed", "window": 64}, r"model\.window=64 has no effect with .*'fixed'"),
    ],
)
def test_layers_that_cannot_alternate_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        systems.build("gpt3", TINY | wrong)
