"""UniLM: who sees whom under each mask, its loss, and text written by the third of them."""

import functools
import json
import math
from pathlib import Path

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t5x_like import decoding
from t5x_like.checkpoints import Checkpoints
from t5x_like.hf import from_pretrained
from t5x_like.models.encoder import forward
from t5x_like.models.unified import KINDS
from t5x_like.systems import bert, unilm
from t5x_like.training import losses

GOLDEN = dict(np.load(Path(__file__).resolve().parents[1] / "golden" / "unilm.npz"))
TINY = unilm.SIZES["base"] | {
    "vocab_size": 32,
    "positions": 24,
    "layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "sep_id": 3,
    "mask_id": 4,
    "dropout": 0.0,
}
# What PyTorch and JAX differ by in float32: the order of sums, 1e-6 of logits near 5. A place that
# is seen and should not be, or a wrong segment, moves them by 1e-1 and more.
TOLERANCE = 1e-4


@functools.cache
def make(head="pretraining"):
    """A module, and parameters large enough that every input moves every output that sees it."""
    module = unilm.build(TINY | {"head": head})
    random = np.random.default_rng(1)

    def draw(path, leaf):
        gain = float(path[-1].key == "scale")
        return jnp.asarray(gain + 0.3 * random.standard_normal(leaf.shape, np.float32))

    return module, jax.tree_util.tree_map_with_path(draw, shapes(module))


def pair(first=4, second=3, padding=1, rows=1):
    """Rows of two segments."""
    length = first + second + padding
    here = np.tile(np.arange(length), (rows, 1))
    return {
        "encoder_input_tokens": jnp.asarray(5 + here * 7 % 25),
        "encoder_token_types": jnp.asarray((here >= first) & (here < first + second), jnp.int32),
        "encoder_segment_ids": jnp.asarray(here < first + second, jnp.int32),
    }


@jax.jit
def under(batch, number):
    """What is said of a batch under the kind of a number in KINDS."""
    return forward(*make(), {**batch, "language_model": number}, None)


def read(batch, kind):
    return under(batch, KINDS.index(kind))


def shapes(module):
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    return nn.unbox(boxed)["params"]


def count(system, config):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes(system.build(config))))


@pytest.mark.parametrize(("size", "published"), [("large", 336_226_108), ("base", 110_106_428)])
def test_it_has_the_parameters_of_bert_and_four_segments_more(size, published):
    config = unilm.SIZES[size]
    more = 4 * config["d_model"]
    assert count(unilm, config | {"vocab_size": 30522}) == published + more
    assert count(unilm, config) == count(bert, bert.SIZES[size] | {"vocab_size": 28996}) + more


# [CLS] a b [SEP] c d [SEP] and a place of padding: a row for each place that reads, a column for
# each that is read.
FIGURE_1 = {
    "bidirectional": ["11111110"] * 7,
    "sequence_to_sequence": ["11110000"] * 4 + ["11111000", "11111100", "11111110"],
    "left_to_right": ["1" * n + "0" * (8 - n) for n in range(1, 8)],
    "right_to_left": ["0" * n + "1" * (7 - n) + "0" for n in range(7)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_place_sees_what_figure_1_has(kind):
    module, _ = make()
    batch = pair() | {"language_model": jnp.array(KINDS.index(kind))}
    dense = unilm.UnifiedEncoder.mask(module, batch).dense(queries=8, keys=8)
    rows = ["".join(map(str, row)) for row in np.asarray(dense[0, 0], int)]
    assert rows[:7] == FIGURE_1[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_through_all_layers_an_output_depends_on_what_it_sees_and_on_all_of_it(kind):
    batch = pair()
    tokens = batch["encoder_input_tokens"]

    @jax.vmap
    def changed(place):
        return read(batch | {"encoder_input_tokens": tokens.at[0, place].add(1)}, kind)["logits"][0]

    difference = np.abs(changed(jnp.arange(8)) - read(batch, kind)["logits"][0]).max(axis=-1)
    rows = ["".join(str(int(moved > 1e-5)) for moved in column) for column in difference.T]
    assert rows[:7] == FIGURE_1[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_documents_in_one_row_are_read_as_in_rows_of_their_own(kind):
    one, two = pair(4, 3, 0), pair(2, 4, 0)
    packed = {name: jnp.concatenate([one[name], two[name]], axis=1) for name in one}
    packed["encoder_segment_ids"] = jnp.array([[1] * 7 + [2] * 6])
    packed["encoder_positions"] = jnp.array([[*range(7), *range(6)]])
    expected = [read(each, kind)["logits"] for each in (one, two)]
    # Sums over other lengths round differently.
    np.testing.assert_allclose(
        read(packed, kind)["logits"], np.concatenate(expected, axis=1), atol=1e-5
    )


@pytest.mark.parametrize(
    ("kind", "segments"),
    [
        ("bidirectional", {0, 1}),
        ("sequence_to_sequence", {4, 5}),
        ("left_to_right", {2}),
        ("right_to_left", {3}),
    ],
)
def test_segments_tell_the_kinds_apart(kind, segments):
    table = gradient_under(pair(padding=0), KINDS.index(kind))["embeddings"]["token_type"]
    assert set(np.flatnonzero(np.abs(table["embedding"]).max(axis=1))) == segments


@jax.jit
def gradient_under(batch, number):
    """Of the squares of all logits, by the parameters."""
    module, params = make()

    def total(params):
        outputs = forward(module, params, {**batch, "language_model": number}, None)
        return jnp.sum(jnp.square(outputs["logits"]))

    return jax.grad(total)(params)


def labelled():
    """Pairs with masked tokens; the last row only pads."""
    batch = pair(rows=3)
    random = np.random.default_rng(0)
    weights = np.zeros((3, 8), np.float32)
    weights[0, [2, 5]], weights[1, [1]] = 1, 1
    real = batch["encoder_segment_ids"].at[2].set(0)
    return batch | {
        "encoder_segment_ids": real,
        "encoder_target_tokens": jnp.asarray(random.integers(5, 32, (3, 8))),
        "encoder_loss_weights": jnp.asarray(weights),
        "label": jnp.asarray([1, 0, 0]),
    }


def only(kind):
    """The shares by which no other kind is drawn."""
    return {name: float(name == kind) for name in KINDS}


def by_hand(kind):
    """The mean of the masked tokens, and of the pairs where they count."""
    outputs, targets = read(labelled(), kind), labelled()["encoder_target_tokens"]
    log_probs = np.asarray(jax.nn.log_softmax(outputs["logits"]))
    masked = -np.mean([log_probs[r, p, targets[r, p]] for r, p in [(0, 2), (0, 5), (1, 1)]])
    pairs = np.asarray(jax.nn.log_softmax(outputs["row_logits"]))
    return masked, -np.mean([pairs[0, 1], pairs[1, 0]]) if kind == "bidirectional" else 0.0


@jax.jit
def step(key):
    """The loss of a training step, its metrics, and its gradient."""
    module, params = make()

    def total(params):
        value, weight, metrics = unilm.loss(module, params, labelled(), key, predicted=0.3)
        return value, (weight, metrics)

    return jax.value_and_grad(total, has_aux=True)(params)


def drawn(metrics):
    """The kinds that a training step has counted."""
    return [kind for kind in KINDS if metrics[f"{kind}/cross_entropy"][1] > 0]


def test_a_step_has_the_loss_of_one_kind_and_bidirectional_that_of_pairs_too():
    seen = set()
    for seed in range(20):
        (total, (weight, metrics)), gradient = step(jax.random.key(seed))
        (kind,) = drawn(metrics)
        if kind in seen:
            continue
        seen.add(kind)
        masked, following = by_hand(kind)
        assert weight == 3
        np.testing.assert_allclose(total / weight, masked + following, rtol=1e-5)
        for name in ("cross_entropy", f"{kind}/cross_entropy"):
            np.testing.assert_allclose(metrics[name][0] / metrics[name][1], masked, rtol=1e-5)
        pairs = kind == "bidirectional"
        assert metrics["next_sentence/cross_entropy"][1] == (2 if pairs else 0)
        assert (np.abs(gradient["head"]["row"]["kernel"]).max() > 0) == pairs
    assert seen == set(KINDS)


def test_evaluation_is_the_mean_over_the_draw():
    module, params = make()
    shares = {"bidirectional": 0.5, "sequence_to_sequence": 0.2, "left_to_right": 0.3}
    shares["right_to_left"] = 0.0

    @jax.jit
    def run(params):
        return unilm.loss(module, params, labelled(), None, predicted=0.3, **shares)

    total, weight, metrics = run(params)
    expected = {kind: by_hand(kind) for kind in KINDS}
    sums = [share * sum(expected[kind]) for kind, share in shares.items()]
    np.testing.assert_allclose(total / weight, sum(sums), rtol=1e-5)
    means = {name: value / count for name, (value, count) in metrics.items()}
    masked = [share * expected[kind][0] for kind, share in shares.items()]
    np.testing.assert_allclose(means["cross_entropy"], sum(masked), rtol=1e-5)
    for kind, share in shares.items():
        assert (f"{kind}/cross_entropy" in means) == (share > 0)
    np.testing.assert_allclose(
        means["left_to_right/cross_entropy"], expected["left_to_right"][0], rtol=1e-5
    )
    following = expected["bidirectional"][1]
    np.testing.assert_allclose(means["next_sentence/cross_entropy"], following, rtol=1e-5)


def test_kinds_are_drawn_by_their_shares_and_each_batch_is_of_one():
    module, params = make()

    def weights(key):
        metrics = unilm.loss(module, params, labelled(), key, predicted=0.3)[2]
        return jnp.array([metrics[f"{kind}/cross_entropy"][1] for kind in KINDS])

    found = np.asarray(jax.lax.map(weights, jax.random.split(jax.random.key(3), 1200)))
    assert np.all(np.sort(found, axis=1) == [0, 0, 0, 3])
    # Four deviations of a share of 1200 draws: 0.054 for a third, 0.043 for a sixth.
    np.testing.assert_allclose(np.mean(found > 0, axis=0), [1 / 3, 1 / 3, 1 / 6, 1 / 6], atol=0.054)


def test_smoothing_reaches_the_masked_tokens():
    module, params = make()
    settings = {"predicted": 0.3, "label_smoothing": 0.1, **only("sequence_to_sequence")}
    run = jax.jit(functools.partial(unilm.loss, module, **settings))
    smoothed, _, _ = run(params, labelled(), None)
    logits = read(labelled(), "sequence_to_sequence")["logits"]
    targets, weights = labelled()["encoder_target_tokens"], labelled()["encoder_loss_weights"]
    expected = losses.cross_entropy(logits, targets, weights, label_smoothing=0.1)[0]
    np.testing.assert_allclose(smoothed, expected, rtol=1e-5)


def test_mistakes_are_told():
    module, params = make()
    with pytest.raises(ValueError, match="sum to 1"):
        unilm.loss(module, params, labelled(), None, left_to_right=0.5)
    with pytest.raises(ValueError, match=r"token_types=2: UniLM has 6"):
        unilm.build(TINY | {"token_types": 2})
    with pytest.raises(ValueError, match="25 tokens together, more than the 24 positions"):
        prefill(np.full((1, 5), 7), np.ones((1, 5), bool), room=20)


@functools.partial(jax.jit, static_argnames="room")
def prefill(sources, real, *, room):
    module, params = make()
    return module.apply(
        {"params": params},
        jnp.asarray(sources),
        cache_length=sources.shape[1] + room,
        decoder_mask=jnp.asarray(real),
        method="prefill",
    )


@jax.tree_util.Partial
def extend(tokens, cache):
    module, params = make()
    return module.apply({"params": params}, tokens, cache, method="extend")


@flax.struct.dataclass
class History:
    """The cache of a model that reads everything anew: the tokens so far."""

    tokens: jax.Array
    real: jax.Array
    length: jax.Array
    source: jax.Array

    def gather(self, rows):
        return History(self.tokens[rows], self.real[rows], self.length, self.source)


@jax.tree_util.Partial
def reread(tokens, history):
    """The logits of a [MASK] after the tokens so far and one more, under the mask of whole rows."""
    put = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=1)
    written = put(history.tokens, tokens, history.length)
    real = put(history.real, jnp.ones_like(tokens), history.length)
    length = history.length + 1
    row = put(written, jnp.full_like(tokens, TINY["mask_id"]), length)
    places = jnp.arange(row.shape[1])
    seen = put(real, jnp.ones_like(tokens), length)
    batch = {
        "encoder_input_tokens": row,
        "encoder_token_types": jnp.broadcast_to(places >= history.source, row.shape).astype(int),
        "encoder_segment_ids": seen,
        "encoder_positions": jnp.maximum(jnp.cumsum(seen, axis=1) - 1, 0),
    }
    logits = jnp.take(read(batch, "sequence_to_sequence")["logits"], length, axis=1)[:, None]
    return logits, History(written, real, length, history.source)


def naive(sources, real, *, room):
    """As `prefill`, for `reread`."""
    width = sources.shape[1]
    padded = jnp.pad(jnp.asarray(sources), ((0, 0), (0, room + 1)))
    there = jnp.pad(jnp.asarray(real, jnp.int32), ((0, 0), (0, room + 1)))
    # The last token of the source is read as the first to be added.
    start = History(padded, there, jnp.array(width - 1), jnp.array(width))
    logits, history = reread(padded[:, width - 1 : width], start)
    return logits[:, 0], history


def sources():
    """Three sources of 5, 3 and 4 tokens, padded on the left."""
    tokens = np.random.default_rng(2).integers(5, 32, (3, 5))
    real = np.arange(5) >= np.array([[0], [2], [1]])
    return np.where(real, tokens, 0), real


def test_with_a_cache_the_logits_are_those_of_reading_all_anew():
    logits, cache = prefill(*sources(), room=6)
    expected, history = naive(*sources(), room=6)
    compiled, naively = jax.jit(extend.func), jax.jit(reread.func)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    for step in range(5):
        tokens = jnp.asarray([[5 + step], [9], [3 * step]])
        logits, cache = compiled(tokens, cache)
        expected, history = naively(tokens, history)
        np.testing.assert_allclose(logits, expected, atol=1e-5)
        assert cache.length == 5 + step + 1


@pytest.mark.parametrize("way", ["greedy", "beams", "samples"])
def test_what_is_written_is_what_reading_all_anew_would_write(way):
    # Networks of random weights repeat themselves.
    filters = decoding.make_filters(no_repeat_ngram_size=1)
    settings = {"max_new_tokens": 6, "eos_ids": 3, "filters": filters}
    found: list = []
    for start, step in [(prefill, extend), (naive, reread)]:
        logits, cache = start(*sources(), room=6)
        if way == "beams":
            beams = decoding.beam_search(step, logits, cache, beams=4, returned=4, **settings)
            found.append((beams.tokens, beams.lengths))
            continue
        if way == "samples":
            settings |= {"choose": decoding.sample, "rng": jax.random.key(5), "samples": 2}
        written = decoding.generate(step, logits, cache, **settings)
        found.append((written.tokens, written.lengths))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert len(np.unique(found[0][0])) > 3


def golden_folder(path):
    """The folder that Hugging Face wrote of its BERT."""
    path.mkdir(parents=True, exist_ok=True)
    prefix = "weights/"
    weights = {n.removeprefix(prefix): x for n, x in GOLDEN.items() if n.startswith(prefix)}
    save_file(weights, path / "model.safetensors")
    (path / "config.json").write_text(str(GOLDEN["config.json"]))
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_computes_what_pytorch_does_under_its_mask(kind, tmp_path):
    model = from_pretrained(golden_folder(tmp_path), system="unilm")
    batch = {
        "encoder_input_tokens": GOLDEN["tokens"],
        "encoder_token_types": GOLDEN["second"],
        "encoder_segment_ids": GOLDEN["real"],
        "language_model": jnp.array(KINDS.index(kind)),
    }
    outputs = model.module.apply({"params": model.params}, batch)
    real = GOLDEN["real"] == 1
    error = np.abs(outputs["logits"] - GOLDEN[f"{kind}/logits"])[real].max()
    assert error < TOLERANCE
    np.testing.assert_allclose(
        outputs["row_logits"], GOLDEN[f"{kind}/row_logits"], atol=TOLERANCE, rtol=0
    )


def test_it_writes_what_pytorch_does_without_a_cache(tmp_path):
    model = from_pretrained(golden_folder(tmp_path), system="unilm", sep_id=3, mask_id=4)
    sources, real = GOLDEN["sources"], GOLDEN["sources_real"]
    written = model.generate(sources, real, max_new_tokens=8, eos_token_id=None)
    np.testing.assert_array_equal(written, np.concatenate([sources, GOLDEN["written"]], axis=1))


def checkpoint(path, head="pretraining"):
    """A checkpoint of the tiny model, as a run leaves it."""
    config = {"system": "unilm", "model": TINY | {"head": head}}
    with Checkpoints(path / "checkpoints", metadata={"config": config}) as saver:
        saver.save(0, Weights(params=make(head)[1], step=jnp.zeros((), jnp.int32)))
    return path


@flax.struct.dataclass
class Weights:
    """A state without an optimizer."""

    params: dict
    step: jax.Array


def test_a_checkpoint_writes_up_to_sep_by_beams_and_by_chance(tmp_path):
    model = from_pretrained(checkpoint(tmp_path))
    assert model.generation.eos_token_id == TINY["sep_id"]
    tokens, real = sources()
    logits, cache = prefill(tokens, real, room=6)
    expected = decoding.generate(extend, logits, cache, max_new_tokens=6, eos_ids=3)
    out = model.generate(tokens, max_new_tokens=6)
    width = max(expected.lengths)
    np.testing.assert_array_equal(out[:, :5], tokens)
    np.testing.assert_array_equal(out[:, 5:], expected.tokens[:, :width])
    beams = model.generate(tokens, num_beams=3, num_return_sequences=2, max_new_tokens=6)
    drawn = model.generate(tokens, do_sample=True, num_return_sequences=2, max_new_tokens=6)
    assert len(beams) == len(drawn) == 6
    with pytest.raises(ValueError, match="padded on the right"):
        model.generate(tokens[:, ::-1], max_new_tokens=2)


def test_its_folder_is_a_bert_until_it_is_called_by_its_name(tmp_path):
    model = from_pretrained(checkpoint(tmp_path / "run"))
    model.save_pretrained(tmp_path / "folder")
    stored = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert stored["model_type"] == "bert"
    assert stored["architectures"] == ["BertForPreTraining"]
    assert stored["type_vocab_size"] == 6
    again = from_pretrained(tmp_path / "folder", system="unilm", dropout=0.0)
    assert again.config == model.config
    jax.tree.map(np.testing.assert_array_equal, again.params, model.params)
    tokens, _ = sources()
    np.testing.assert_array_equal(
        again.generate(tokens, max_new_tokens=5), model.generate(tokens, max_new_tokens=5)
    )
    as_bert = from_pretrained(tmp_path / "folder")
    assert as_bert.system == "bert"
    np.testing.assert_array_equal(as_bert(tokens).logits, model(tokens).logits)
    with pytest.raises(ValueError, match="this bert reads text, and writes none"):
        as_bert.generate(tokens)
    with pytest.raises(ValueError, match="'t5'"):
        from_pretrained(tmp_path / "folder", system="t5")


def test_from_a_bert_each_kind_begins_with_its_segments(tmp_path):
    folder = golden_folder(tmp_path)
    weights = load_file(folder / "model.safetensors")
    name = "bert.embeddings.token_type_embeddings.weight"
    save_file(weights | {name: weights[name][:2]}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"type_vocab_size": 2}))
    model = from_pretrained(folder, system="unilm")
    assert model.config["token_types"] == 6
    table = model.params["embeddings"]["token_type"]["embedding"]
    np.testing.assert_array_equal(table, weights[name][[0, 1, 0, 0, 0, 1]])
    assert (model.config["sep_id"], model.config["mask_id"]) == (102, 103)
    assert model.generation.eos_token_id == 102


def test_a_head_for_labelled_text_is_bidirectional_and_writes_nothing(tmp_path):
    folder = checkpoint(tmp_path)
    model = from_pretrained(folder, head="classification", labels=3)
    theirs = from_pretrained(folder)
    tokens, real = sources()
    assert model(tokens, real).logits.shape == (3, 3)
    for part in ("embeddings", "encoder"):
        jax.tree.map(np.testing.assert_array_equal, model.params[part], theirs.params[part])
    with pytest.raises(ValueError, match="writes none"):
        model.generate(tokens)
