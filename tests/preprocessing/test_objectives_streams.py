"""Objectives over a long stream of documents: full rows, nothing lost, the right statistics."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5x_like.objectives import denoising
from t5x_like.preprocessing import seqio_objectives
from t5x_like.preprocessing.task_vocabulary import TaskVocabulary
from tests.number_vocabulary import NumberVocabulary

EOS = 1
SENTINELS = 100
FIRST = 400_099  # the last id
VOCABULARY = NumberVocabulary(FIRST + 1)
FEATURES = {name: seqio.Feature(TaskVocabulary(VOCABULARY)) for name in ("inputs", "targets")}
TOKENS = np.arange(3, 200_003, dtype=np.int32)  # no two alike, so text can be put together again


def stream(name, *, lengths, seed=0, tokens=200_000, **settings):
    """The dataset of an objective over documents of 0 to 299 tokens."""
    sizes = np.random.default_rng(0).integers(0, 300, size=tokens // 100)
    sizes = np.diff(np.minimum(np.cumsum(sizes), tokens), prepend=0)
    sizes[-1] += tokens - sizes.sum()
    text = tf.RaggedTensor.from_row_lengths(TOKENS[:tokens], sizes)
    dataset = tf.data.Dataset.from_tensor_slices({"text": text})
    with seqio.utils.map_seed_manager(seed):
        for step in seqio_objectives.build(name, **settings).preprocessors:
            step = seqio.utils.add_kwargs_to_transform(
                step, sequence_length=lengths, output_features=FEATURES
            )
            dataset = step(dataset)
    return dataset


def examples(name, **arguments):
    """[(inputs, targets)], NumPy rows, all but the short last one; inputs may be None."""
    rows = stream(name, **arguments).as_numpy_iterator()
    return [(row.get("inputs"), row["targets"]) for row in rows][:-1]


def is_sentinel(tokens):
    return tokens > FIRST - SENTINELS


def restored(inputs, targets):
    """The text: each sentinel of the inputs gives way to what follows it in the targets."""
    places = np.flatnonzero(is_sentinel(targets))
    spans = np.split(targets, places)[1:]
    found = {span[0]: span[1:] for span in spans}
    pieces = [found.get(token, [token]) for token in inputs]
    return np.concatenate(pieces)


SPANS = [
    ("span_corruption", {}, 40, 13),
    ("span_corruption", {"rate": 0.3, "mean_span": 5.0}, 60, 29),
    ("random_spans", {"rate": 0.5, "mean_span": 2.0}, 90, 92),
    ("span_corruption", {"final_sentinel": True}, 40, 14),
    ("span_corruption", {"random_roll": True}, 16, 5),
    ("iid_replace_spans", {}, 40, 16),
    ("iid_replace_spans", {"rate": 0.5}, 40, 60),
]


@pytest.mark.parametrize(("name", "settings", "inputs_length", "targets_length"), SPANS)
def test_sentinels_count_down_alike_on_both_sides_which_together_are_the_text(
    name, settings, inputs_length, targets_length
):
    lengths = {"inputs": inputs_length, "targets": targets_length}
    closed = settings.get("final_sentinel", False) or name == "iid_replace_spans"
    text = []
    for inputs, targets in examples(name, lengths=lengths, tokens=20_000, **settings):
        count = is_sentinel(inputs).sum()
        assert count > 0
        np.testing.assert_array_equal(inputs[is_sentinel(inputs)], FIRST - np.arange(count))
        np.testing.assert_array_equal(
            targets[is_sentinel(targets)], FIRST - np.arange(count + closed)
        )
        assert targets[0] == FIRST
        assert inputs[-1] == targets[-1] == EOS
        assert is_sentinel(targets)[-2] == closed
        text.append(restored(inputs[:-1], targets[:-1]))
    assert len(text) > 150
    text = np.concatenate(text)
    np.testing.assert_array_equal(text, TOKENS[: len(text)])


def test_span_corruption_turns_568_tokens_into_512_and_114_without_padding():
    lengths = {"inputs": 512, "targets": 114}
    pairs = examples("span_corruption", lengths=lengths)
    assert len(pairs) == len(TOKENS) // 568
    assert {(len(inputs), len(targets)) for inputs, targets in pairs} == {(512, 114)}
    assert all(targets.min() > 0 and inputs.min() > 0 for inputs, targets in pairs)


@pytest.mark.parametrize(("rate", "span"), [(0.1, 2.0), (0.15, 3.0), (0.25, 5.0), (0.5, 10.0)])
def test_rates_and_span_lengths_are_as_asked_for(rate, span):
    inputs_length = 128
    raw, targets_length = denoising.random_spans_lengths(inputs_length, rate=rate, mean_span=span)
    lengths = {"inputs": inputs_length, "targets": targets_length}
    pairs = examples("span_corruption", lengths=lengths, rate=rate, mean_span=span, tokens=100_000)
    assert len(pairs) > 400
    assert {(len(inputs), len(targets)) for inputs, targets in pairs} == {
        (inputs_length, targets_length)
    }
    noise = sum((~is_sentinel(targets)).sum() - 1 for _, targets in pairs) / len(pairs)
    spans = sum(is_sentinel(targets).sum() for _, targets in pairs) / len(pairs)
    # Counts are rounded to whole tokens and spans, nothing else separates them from the setting.
    assert abs(noise - raw * rate) <= 0.5
    assert abs(spans - noise / span) <= 0.5


def test_iid_noise_has_its_rate_and_the_span_lengths_of_chance():
    pairs = examples("iid_replace_spans", lengths={"inputs": 129, "targets": 64})
    noise = np.array([(~is_sentinel(targets)).sum() - 1 for _, targets in pairs])
    spans = np.array([is_sentinel(inputs).sum() for inputs, _ in pairs])
    assert (noise == 19).all()  # 15% of 128
    # each of 19 tokens opens a span unless the token before is noise: 18 / 128 of them.
    assert abs(spans.mean() - 19 * (1 - 18 / 128)) < 0.15
    assert spans.std() > 0.5
    assert max(len(inputs) for inputs, _ in pairs) <= 129


def test_dropped_tokens_fill_both_sides_and_keep_their_order():
    pairs = examples("iid_drop_tokens", lengths={"inputs": 102, "targets": 19})
    assert {(len(inputs), len(targets)) for inputs, targets in pairs} == {(102, 19)}
    for index, (inputs, targets) in enumerate(pairs):
        kept, dropped = inputs[:-1], targets[:-1]
        assert (np.diff(kept) > 0).all()
        assert (np.diff(dropped) > 0).all()
        both = np.sort(np.concatenate([kept, dropped]))
        np.testing.assert_array_equal(both, TOKENS[119 * index : 119 * (index + 1)])


@pytest.mark.parametrize(
    ("name", "settings", "masked", "random", "kept"),
    [
        ("bert_style", {}, 0.9, 0.1, 0.0),  # T5's text
        ("bert_style", {"kept_rate": 0.1}, 0.8, 0.1, 0.1),  # BERT's
        ("mass_style", {}, 1.0, 0.0, 0.0),
    ],
)
def test_whole_text_objectives_corrupt_15_percent_by_their_shares(
    name, settings, masked, random, kept
):
    pairs = examples(name, lengths={"inputs": 101, "targets": 101}, **settings)
    inputs = np.stack([inputs for inputs, _ in pairs])[:, :-1]
    targets = np.stack([targets for _, targets in pairs])[:, :-1]
    np.testing.assert_array_equal(targets.reshape(-1), TOKENS[: targets.size])
    mask = inputs == FIRST
    changed = (inputs != targets) & ~mask
    noise = 0.15 * inputs.size
    assert (changed | mask).sum(axis=1).max() <= 15
    # 30,000 noise tokens: a share has a standard deviation below 0.003.
    assert abs(mask.sum() / noise - masked) < 0.012
    assert abs(changed.sum() / noise - random) < 0.012
    assert abs(1 - (mask | changed).sum() / noise - kept) < 0.012
    if random:
        assert inputs[changed].min() >= 3
        assert inputs[changed].max() < FIRST
        assert abs(inputs[changed].mean() / FIRST - 0.5) < 0.03  # over the whole vocabulary


def test_deshuffling_keeps_the_tokens_and_loses_their_order():
    pairs = examples("deshuffling", lengths={"inputs": 51, "targets": 51}, tokens=100_000)
    inputs = np.stack([inputs for inputs, _ in pairs])[:, :-1]
    targets = np.stack([targets for _, targets in pairs])[:, :-1]
    np.testing.assert_array_equal(targets.reshape(-1), TOKENS[: targets.size])
    np.testing.assert_array_equal(np.sort(inputs, axis=1), targets)
    assert abs((inputs == targets).mean() - 1 / 50) < 0.005
    assert (
        abs(np.corrcoef(np.argsort(inputs, axis=1).reshape(-1), targets.reshape(-1) % 50)[0, 1])
        < 0.02
    )


def test_prefix_and_rest_are_the_text_and_fit_wherever_it_is_cut():
    pairs = examples("prefix_lm", lengths={"inputs": 32, "targets": 32}, tokens=80_000)
    text = np.concatenate([np.concatenate([i[:-1], t[:-1]]) for i, t in pairs])
    np.testing.assert_array_equal(text, TOKENS[: len(text)])
    prefixes = np.array([len(inputs) - 1 for inputs, _ in pairs])
    assert {len(inputs) + len(targets) for inputs, targets in pairs} == {32 + 2}
    assert (prefixes.min(), prefixes.max()) == (1, 31)
    assert abs(prefixes.mean() - 16) < 0.9  # standard deviation of the mean: 0.18


def test_language_modeling_is_the_documents_each_closed_by_eos():
    rows = [
        targets
        for _, targets in examples("language_modeling", lengths={"targets": 64}, tokens=50_000)
    ]
    assert {len(row) for row in rows} == {64}
    text = np.concatenate(rows)
    words = text[text != EOS]
    np.testing.assert_array_equal(words, TOKENS[: len(words)])
    assert not ((text[1:] == EOS) & (text[:-1] == EOS)).any()
    assert 0.8 < len(text) / (text == EOS).sum() / 150 < 1.2  # documents are of 150 on average


@pytest.mark.parametrize(
    "name",
    ["span_corruption", "bert_style", "deshuffling", "prefix_lm"],
)
def test_a_seed_fixes_every_example_and_another_seed_changes_them(name):
    def sampled(seed):
        lengths = {"inputs": 40, "targets": 60}
        pairs = examples(name, lengths=lengths, seed=seed, tokens=2000)
        return [(inputs.tolist(), targets.tolist()) for inputs, targets in pairs]

    assert sampled(1) == sampled(1)
    assert sum(a == b for a, b in zip(sampled(1), sampled(2), strict=False)) < 5
    assert len({str(np.diff(inputs)) for inputs, _ in sampled(1)}) > 20  # not one mask for all


def test_a_saved_pipeline_goes_on_with_the_same_masks(tmp_path):
    dataset = stream("span_corruption", lengths={"inputs": 40, "targets": 13}, tokens=2000)
    expected = [example["inputs"].tolist() for example in dataset.as_numpy_iterator()]
    iterator = iter(dataset)
    for _ in range(11):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "position"))
    restored_iterator = iter(dataset)
    tf.train.Checkpoint(iterator=restored_iterator).read(path).assert_consumed()
    assert [e["inputs"].numpy().tolist() for e in restored_iterator] == expected[11:]
