"""BigBird-ETC: its attention beside a dense one, hidden sentences, no array of all pairs."""

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from jax.extend.core import jaxprs_in_params

from t5x_like import convert, partitioning, systems
from t5x_like.losses import forward
from t5x_like.pretrained.loading import load
from t5x_like.pretrained.model import Pretrained
from t5x_like.pretrained.weight_source import open_source
from t5x_like.systems import bigbird_etc, roberta
from t5x_like.systems.bigbird_etc import GlobalLocalAttention, SentenceMask

TINY = bigbird_etc.SIZES["base"] | {
    "vocab_size": 32,
    "global_tokens": 5,
    "layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "block": 4,
    "distance": 3,
    "dropout": 0.0,
}
LENGTH, COUNT = 22, 5  # 6 blocks, the last of them not full
# Float32 sums of some tens of terms of order 1, in another order.
ROUNDING = 2e-5


def abstract(config):
    module = systems.build("bigbird_etc", config)
    return jax.eval_shape(module.init, jax.random.key(0), module.example_batch())["params"]


@pytest.mark.parametrize(("size", "layers", "width"), [("base", 12, 768), ("large", 24, 1024)])
def test_parameters_are_berts_and_those_of_global_tokens(size, layers, width):
    """None are published; BERT's layers have 12 D^2 + 13 D each."""
    shapes = nn.unbox(abstract(bigbird_etc.SIZES[size]))
    found = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    heads = width // 64
    of_global = width**2 + width + 2 * width  # their output projection, and their norm
    relative = 2 * 27 * (width + heads)
    embeddings = 50265 * width + 2 * width + 4 * width
    head = width**2 + width + 2 * width + 50265
    layer = 12 * width**2 + 13 * width + of_global + relative
    assert found == embeddings + layers * layer + head


def mask_of(hard_global, hard_text):
    """Two documents of a row, and one with padding: sentences 1 and 2, 3 and 4; 1 and 2."""
    segments = np.zeros((2, LENGTH), np.int32)
    sentences = np.zeros_like(segments)
    segments[0, :12], segments[0, 12:20], segments[1, :15] = 1, 2, 1
    for row, number, part in ((0, 1, (1, 6)), (0, 2, (6, 11)), (0, 3, (13, 16)), (0, 4, (16, 19))):
        sentences[row, slice(*part)] = number
    sentences[1, 1:5], sentences[1, 5:14] = 1, 2
    documents = np.array([[1, 1, 2, 2, 0], [1, 1, 0, 0, 0]], np.int32)
    return SentenceMask(
        text_segments=segments,
        sentences=sentences,
        global_segments=documents,
        hard_global=hard_global,
        hard_text=hard_text,
    )


def candidates_of(mask):
    """The same rows with paragraphs: global tokens 1 and 3 see all, and 1 and 2 have links."""
    special = 4 + mask.text_segments
    paragraphs = np.where(mask.sentences, np.array([0, 1, 4, 2, 2])[mask.sentences], special)
    paragraphs = np.where(mask.text_segments, paragraphs, 0)
    links = np.zeros_like(mask.sentences)
    links[:, 3], links[:, 8:10], links[0, 14] = 1, 1, 2
    return dataclasses.replace(
        mask,
        everywhere=np.array([[True, False, True, False, False]] * 2),
        paragraphs=paragraphs,
        global_paragraphs=np.array([[1, 4, 2, 2, 0], [1, 4, 0, 0, 0]]),
        links=links,
    )


def allowed(mask, b, q, k, near):
    """Whether one token of a document sees another; text follows the global tokens."""
    if q >= COUNT and k >= COUNT:
        if mask.paragraphs is None:
            return near
        first, second = (mask.paragraphs[b, one - COUNT] for one in (q, k))
        return near and first == second
    if q >= COUNT:
        return is_linked(mask, b, q, k) or not mask.hard_text
    everywhere = mask.everywhere is not None and mask.everywhere[b, q]
    return k < COUNT or is_linked(mask, b, q, k) or everywhere or not mask.hard_global


def is_linked(mask, b, q, k):
    """Whether one of two tokens is the global token of the other's sentence, or its link."""
    token, summary = max(q, k) - COUNT, min(q, k) + 1
    links = [] if mask.links is None else [mask.links[b, token]]
    return summary in [mask.sentences[b, token], *links]


def relation_of(mask, b, q, k):
    """The relation of two tokens, as `GlobalLocalAttention` describes it."""
    distance, ends = TINY["distance"], 2 * TINY["distance"]
    if (q < COUNT) == (k < COUNT):
        of_global = mask.global_paragraphs if q < COUNT else None
        if of_global is not None and of_global[b, q] != of_global[b, k]:
            return ends
        return np.clip(k - q, -distance, distance) + distance
    return ends + 1 + int(is_linked(mask, b, q, k))


def reference(params, x, mask):
    """The output by the definition, with a score for each pair of all tokens."""
    total = COUNT + LENGTH
    query, key, value = (
        np.einsum("BLD,DHK->BLHK", x, p["kernel"]) + p["bias"]
        for p in (params[name] for name in ("query", "key", "value"))
    )
    kinds = np.arange(total) >= COUNT  # True on text
    place = np.where(kinds, np.arange(total) - COUNT, np.arange(total))
    segments = np.concatenate([mask.global_segments, mask.text_segments], axis=1)
    out = np.zeros((2, total, 2, 8))
    for b, q in np.ndindex(2, total):
        if not segments[b, q]:
            continue
        seen, scores = [], []
        side = "text" if kinds[q] else "global"
        for k in range(total):
            if segments[b, k] != segments[b, q]:
                continue
            near = abs(place[q] // 4 - place[k] // 4) <= 1
            if not allowed(mask, b, q, k, near):
                continue
            relation = relation_of(mask, b, q, k)
            vector = key[b, k] + params[f"{side}_relative"][relation]
            score = (query[b, q] * vector).sum(-1) + params[f"{side}_relative_bias"][relation]
            seen.append(k)
            scores.append(score / 8**0.5)
        weights = np.exp(scores - np.max(scores, axis=0))  # [S H]
        weights /= weights.sum(0)
        out[b, q] = np.einsum("SH,SHK->HK", weights, value[b, seen])
    ends = [params["global_out"], params["out"]]
    parts = [out[:, :COUNT], out[:, COUNT:]]
    parts = [
        np.einsum("BTHK,HKD->BTD", o, p["kernel"]) + p["bias"]
        for o, p in zip(parts, ends, strict=True)
    ]
    return np.concatenate(parts, axis=1), segments > 0


@pytest.fixture(scope="module")
def attention():
    """The module and its parameters, all of them random."""
    module = GlobalLocalAttention(heads=2, width=8, block=4, distance=3, use_bias=True)
    x = jax.random.normal(jax.random.key(0), (2, COUNT + LENGTH, 16))

    def run(module, x, mask):
        return module.attend(x, module.keys_values(x), mask=mask)[0]

    params = nn.unbox(module.init(jax.random.key(1), x, mask_of(True, False), method=run))["params"]
    leaves, tree = jax.tree.flatten(params)
    random = np.random.default_rng(2)
    params = jax.tree.unflatten(tree, [0.5 * random.normal(size=leaf.shape) for leaf in leaves])
    return params, x, jax.jit(lambda p, x, mask: module.apply({"params": p}, x, mask, method=run))


@pytest.mark.parametrize("made", [lambda mask: mask, candidates_of], ids=["text", "candidates"])
@pytest.mark.parametrize("hard_text", [False, True])
@pytest.mark.parametrize("hard_global", [True, False])
def test_it_is_dense_attention_under_the_mask_with_relative_terms(
    hard_global, hard_text, made, attention
):
    params, x, run = attention
    mask = made(mask_of(hard_global, hard_text))
    expected, real = reference(params, np.asarray(x), mask)
    found = run(params, x, mask)
    assert real.sum() == 35 + 6
    np.testing.assert_allclose(found[real], expected[real], atol=ROUNDING)


def make_batch(rows=2, length=LENGTH, *, words=4):
    """Rows of sentences of some words between [CLS] and [SEP], the second sentence hidden."""
    tokens = np.random.default_rng(0).integers(4, 32, (rows, length)).astype(np.int32)
    sentences = np.zeros_like(tokens)
    sentences[:, 1:-1] = np.arange(length - 2) // words + 1
    hidden = (sentences == 2).astype(np.int32)
    weights = np.zeros(tokens.shape, np.float32)
    weights[:, [2, 15]] = 1
    inputs = np.where(hidden == 1, 3, tokens)
    inputs[:, [2, 15]] = 3
    return {
        "encoder_input_tokens": inputs,
        "encoder_target_tokens": tokens,
        "encoder_segment_ids": np.ones_like(tokens),
        "encoder_loss_weights": weights,
        "encoder_sentences": sentences,
        "encoder_hidden": hidden,
    }


@pytest.fixture(scope="module")
def network():
    module = systems.build("bigbird_etc", TINY)
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch()))["params"]
    params = jax.tree.map(lambda x: x * 5, params)
    compare = jax.jit(lambda p, b: forward(module, p, b, None, method="compare"))
    return module, params, compare


def test_a_hidden_sentence_is_read_by_its_encoding_alone_and_by_nothing_else(network):
    _, params, compare = network
    rows = make_batch()
    before = compare(params, rows)
    tokens = np.where(rows["encoder_hidden"] == 1, 9, rows["encoder_target_tokens"])
    after = compare(params, rows | {"encoder_target_tokens": tokens})
    for name in ("logits", "summaries"):
        np.testing.assert_array_equal(before[name], after[name])
    changed = np.abs(before["alone"] - after["alone"]).max(axis=-1) > 1e-3
    np.testing.assert_array_equal(changed, [[False, True, False, False, False]] * 2)


def test_a_sentence_alone_is_a_row_of_nothing_else(network):
    _, params, compare = network
    rows = make_batch()
    alone = compare(params, rows)["alone"]
    third = rows["encoder_target_tokens"][:, 9:13]
    row = np.zeros_like(rows["encoder_target_tokens"])
    row[:, :4] = third
    real = (np.arange(LENGTH) < 4).astype(np.int32)[None].repeat(2, 0)
    single = rows | {
        "encoder_input_tokens": row,
        "encoder_target_tokens": row,
        "encoder_segment_ids": real,
        "encoder_sentences": real,
    }
    found = compare(params, single)
    # As the only sentence of a document, and as the third of five: positions are relative.
    np.testing.assert_allclose(found["summaries"][:, 0], alone[:, 2], atol=ROUNDING)


def test_the_loss_of_hidden_sentences_is_the_log_of_their_share(network):
    _, params, compare = network
    rows = make_batch()
    outputs = compare(params, rows)
    total, weight, metrics = bigbird_etc.contrast(outputs, rows)
    logits = np.einsum("BD,BSD->BS", outputs["summaries"][:, 1], outputs["alone"]) / 4
    assert weight == 2
    expected = (scipy.special.logsumexp(logits, axis=1) - logits[:, 1]).sum()
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"][0], (logits.argmax(1) == 1).sum())
    # A row of two sentences has two candidates.
    short = rows | {"encoder_sentences": np.where(rows["encoder_sentences"] > 2, 0, 1)}
    short["encoder_sentences"] *= rows["encoder_sentences"]
    total, weight, _ = bigbird_etc.contrast(outputs, short)
    two = (scipy.special.logsumexp(logits[:, :2], axis=1) - logits[:, 1]).sum()
    assert two < expected - 1
    np.testing.assert_allclose(total, two, rtol=1e-5, atol=ROUNDING)


def test_without_sentences_a_text_is_one(network):
    module, params, _ = network
    rows = {k: v for k, v in make_batch().items() if k.startswith(("encoder_i", "encoder_seg"))}
    given = rows | {"encoder_sentences": rows["encoder_segment_ids"]}
    run = jax.jit(lambda p, b: forward(module, p, b, None)["logits"])
    np.testing.assert_array_equal(run(params, rows), run(params, given))


def test_it_starts_from_roberta_with_copies_for_global_tokens(tmp_path):
    same = ("vocab_size", "layers", "d_model", "d_ff", "heads", "dropout")
    config = roberta.SIZES["base"] | {name: TINY[name] for name in same} | {"positions": 16}
    module = systems.build("roberta", config)
    params = nn.unbox(jax.jit(module.init)(jax.random.key(3), module.example_batch()))["params"]
    leaves, tree = jax.tree.flatten(params)
    random = np.random.default_rng(4)
    leaves = [random.normal(size=leaf.shape).astype(np.float32) for leaf in leaves]
    there = jax.tree.unflatten(tree, leaves)
    Pretrained(module, there, system="roberta", config=config).save_pretrained(tmp_path)

    read = {"system": "bigbird_etc", "config": TINY, "dtype": np.float32, "mesh": None}
    here = load(open_source(tmp_path), systems.build("bigbird_etc", TINY), **read)
    equal = np.testing.assert_array_equal
    jax.tree.map(equal, here["head"], there["head"])
    for name, other in {"token": "token", "norm": "norm", "global_norm": "norm"}.items():
        jax.tree.map(equal, here["embeddings"][name], there["embeddings"][other])
    mine, theirs = (dict(one["encoder"]["layers"]["block"]) for one in (here, there))
    attention, own = dict(mine.pop("self_attention")), theirs.pop("self_attention")
    jax.tree.map(equal, mine.pop("global_attention_norm"), theirs["self_attention_norm"])
    jax.tree.map(equal, mine, theirs)
    jax.tree.map(equal, attention.pop("global_out"), own["out"])
    new = {
        attention.pop(f"{side}_relative{end}").shape
        for side in ("text", "global")
        for end in ("", "_bias")
    }
    assert new == {(2, 9, 2, 8), (2, 9, 2)}
    jax.tree.map(equal, attention, own)
    unrolled = load(
        open_source(tmp_path),
        systems.build("bigbird_etc", TINY | {"loop": "unroll"}),
        **read | {"config": TINY | {"loop": "unroll"}},
    )
    last = unrolled["encoder"]["layers"]["layer_1"]["self_attention"]["global_out"]["kernel"]
    equal(last, own["out"]["kernel"][1])


def test_its_own_checkpoint_is_read_as_it_was_written(network, tmp_path):
    module, params, _ = network
    params = jax.tree.map(lambda x: x + 0.1 * np.arange(x.size).reshape(x.shape), params)
    model = Pretrained(module, params, system="bigbird_etc", config=TINY)
    convert.FORMATS["t5x_like"](model, tmp_path / "saved")
    read = {"system": "bigbird_etc", "config": TINY, "dtype": np.float32, "mesh": None}
    found = load(open_source(tmp_path / "saved"), module, **read)
    jax.tree.map(np.testing.assert_array_equal, found, params)


def arrays(jaxpr):
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            yield from arrays(inner)


def test_there_is_no_score_for_each_pair_of_tokens(network):
    module, params, _ = network
    length = 512
    rows = make_batch(rows=1, length=length, words=128)

    def loss(params):
        return bigbird_etc.loss(module, params, rows, None)[0]

    jaxpr = jax.make_jaxpr(jax.grad(loss))(params)
    sizes = [math.prod(shape) for shape in arrays(jaxpr.jaxpr)]
    # The keys of 128 blocks in 2 layers: 3 blocks and the global tokens, 2 heads of 8.
    assert max(sizes) == 2 * 128 * (3 * 4 + COUNT) * 2 * 8 < length * length


@pytest.mark.slow
def test_a_gradient_on_a_mesh_of_eight_is_that_of_one_device(network):
    module, params, _ = network
    rows = make_batch(rows=4)

    def loss(params, rows):
        total, weight, _ = bigbird_etc.loss(module, params, rows, None)
        return total / weight

    run = jax.value_and_grad(loss)
    expected = jax.jit(run)(params, rows)
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 2, "model": 2})
    axes = nn.get_partition_spec(abstract(TINY))
    with partitioning.layout(mesh):
        spread = jax.device_put(params, partitioning.shardings(mesh, axes))
        found = jax.jit(run)(spread, partitioning.shard_batch(rows, mesh))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=5e-5), found, expected
    )
    assert all(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(expected[1]["encoder"]))


def test_settings_and_batches_that_do_not_fit_are_refused(network):
    module, params, _ = network
    for name in ("block", "global_tokens"):
        with pytest.raises(ValueError, match=rf"model\.{name}=0 must be 1 or more"):
            systems.build("bigbird_etc", TINY | {name: 0})
    rows = {k: v for k, v in make_batch().items() if k != "encoder_hidden"}
    with pytest.raises(ValueError, match=r"batch has none: set data.objective='etc', or model"):
        bigbird_etc.loss(module, params, rows, None)
    with pytest.raises(ValueError, match="global-local attention never has all scores"):
        module.apply({"params": params}, rows, collect=("attention_scores",))


CHOICES = {**TINY, "head": "candidates", "global_tokens": 12}


def make_question(order=(0, 1, 2)):
    """A row of three candidates, a question of two tokens and two documents, and a shorter row."""
    texts = [[5, 6], [7], [8, 9, 10]]  # of the candidates
    # (tokens, sentence, paragraph, the candidate that they mention before it is moved)
    parts = [(texts[old], new, new, old) for new, old in enumerate(order)]
    parts += [([11], 3, 3, None), ([12], 4, 3, None)]
    parts += [([13, 14], 5, 4, None), (texts[1], 5, 4, 1), ([15, 16, 17, 18], 6, 4, None)]
    parts += [([19, 20], 7, 5, None), (texts[0], 7, 5, 0)]
    fields = {name: np.zeros((2, 24), np.int32) for name in ("tokens", "s", "p", "c")}
    place = 0
    for tokens, sentence, paragraph, mentioned in parts:
        here = slice(place, place + len(tokens))
        place += len(tokens)
        number = 0 if mentioned is None else order.index(mentioned) + 1
        values = (tokens, sentence + 1, paragraph + 1, number)
        for field, value in zip(fields.values(), values, strict=True):
            field[0, here] = value
    for field in fields.values():
        field[1, :4] = field[0, :4]
    names = ("input_tokens", "sentences", "paragraphs", "candidates")
    rows = {f"encoder_{name}": x for name, x in zip(names, fields.values(), strict=True)}
    real = np.arange(24) < np.array([[place], [4]])
    return rows | {"encoder_segment_ids": real.astype(np.int32)}


@pytest.fixture(scope="module")
def chooser():
    module = systems.build("bigbird_etc", CHOICES)
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch()))["params"]
    leaves, tree = jax.tree.flatten(params)
    random = np.random.default_rng(5)
    params = jax.tree.unflatten(tree, [x + 0.4 * random.normal(size=x.shape) for x in leaves])
    run = jax.jit(lambda p, b: forward(module, p, b, None)["logits"])
    return module, params, lambda rows: np.asarray(run(params, rows))


def test_the_order_of_candidates_is_only_the_order_of_their_scores(chooser):
    """Candidates and documents are sets: no position tells one candidate from another."""
    *_, run = chooser
    found = run(make_question())
    assert np.ptp(found[0, :3]) > 0.01
    order = (2, 0, 1)
    moved = run(make_question(order))
    np.testing.assert_allclose(moved[0, :3], found[0, [*order]], atol=ROUNDING)
    # Of the paper: only a candidate has a score.
    np.testing.assert_array_equal(found[0, 3:], -1e9)
    np.testing.assert_array_equal(found[1] > -1e9, np.arange(12) < 3)


def test_a_score_is_a_dense_layer_on_the_global_token_of_a_candidate(chooser):
    module, params, run = chooser
    rows = make_question()
    apply = lambda network, b: network._encode(b, deterministic=True, collect=())[0]  # noqa: E731
    states = module.apply({"params": params}, rows, method=apply)
    layer = params["head"]["candidate"]
    expected = (np.asarray(states)[0, :3] @ layer["kernel"] + layer["bias"])[:, 0]
    np.testing.assert_allclose(run(rows)[0, :3], expected, atol=ROUNDING)


def test_a_mention_and_a_paragraph_change_the_scores(chooser):
    *_, run = chooser
    rows = make_question()
    before = run(rows)[0, :3]
    candidates = rows["encoder_candidates"].copy()
    candidates[0, 10] = 0  # candidate 2 in the first document
    after = run(rows | {"encoder_candidates": candidates})[0, :3]
    assert np.abs(after - before).min() > 1e-4
    renamed = rows["encoder_paragraphs"] + 3 * (rows["encoder_paragraphs"] == 6)
    np.testing.assert_array_equal(run(rows | {"encoder_paragraphs": renamed})[0, :3], before)
    joined = np.minimum(rows["encoder_paragraphs"], 5)  # documents read each other
    assert np.abs(run(rows | {"encoder_paragraphs": joined})[0, :3] - before).min() > 1e-4


def test_the_loss_is_over_the_candidates_of_each_row(chooser):
    module, params, run = chooser
    rows = make_question() | {"label": np.array([1, 2])}
    total, weight, metrics = (
        systems.find("bigbird_etc").tasks["candidates"].loss(module, params, rows, None)
    )
    logits = run(rows)[:, :3]
    expected = scipy.special.logsumexp(logits, axis=1) - logits[[0, 1], [1, 2]]
    assert weight == 2
    np.testing.assert_allclose(total, expected.sum(), rtol=1e-5)
    assert metrics["accuracy"][0] == (logits.argmax(axis=1) == [1, 2]).sum()


def test_candidates_and_questions_need_global_tokens():
    check = systems.find("bigbird_etc").tasks["candidates"].check
    settings = {"choices": 79, "longest_question": 64}
    check({"global_tokens": 143}, settings)
    with pytest.raises(
        ValueError, match=r"^model.global_tokens=142: .*choices=79 .* need 143 global tokens$"
    ):
        check({"global_tokens": 142}, settings)
