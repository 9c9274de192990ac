"""Encoder objectives over thousands of rows: pairs, rates, span lengths, what noise becomes."""

import functools
import random

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5x_like.objectives import formats
from t5x_like.objectives.formats import DocumentGroup
from t5x_like.preprocessing import seqio_objectives
from t5x_like.preprocessing.task_vocabulary import TaskVocabulary
from tests.word_vocabulary import WordVocabulary

SENTENCE, SENTENCES, DOCUMENTS = 5, 50, 100
DOCUMENT = SENTENCE * SENTENCES  # tokens
TEXT = DOCUMENT * DOCUMENTS  # no two tokens alike, so that a token identifies its position
CLS, SEP, MASK, FIRST = 2, 3, 4, 5
# Words of one, two and three tokens by turns.
VOCABULARY = WordVocabulary(("" if i % 6 in {0, 1, 3} else "##") + f"w{i}" for i in range(TEXT))


@functools.cache
def rows(name, length=64, *, seed=0, epochs=1, **settings):
    """All rows of an objective as one array a feature, [B, L], padded with -1; and [B] labels."""
    text = np.arange(FIRST, FIRST + TEXT, dtype=np.int32).reshape(DOCUMENTS, DOCUMENT)
    lengths = np.full([DOCUMENTS, SENTENCES], SENTENCE, np.int32)
    dataset = tf.data.Dataset.from_tensor_slices({"text": text, "sentence_lengths": lengths})
    dataset = dataset.repeat(epochs)
    with seqio.utils.map_seed_manager(seed):
        for step in seqio_objectives.build(name, **settings).preprocessors:
            step = seqio.utils.add_kwargs_to_transform(
                step,
                sequence_length={"inputs": length},
                output_features={"inputs": seqio.Feature(TaskVocabulary(VOCABULARY))},
            )
            dataset = step(dataset)
    shapes = {k: [length] if k != "label" else [1] for k in dataset.element_spec}
    dataset = dataset.padded_batch(1_000_000, shapes, padding_values=-1)
    [batch] = dataset.as_numpy_iterator()
    return batch


def places(tokens):
    """(document, token in it) of tokens of text."""
    return divmod(tokens - FIRST, DOCUMENT)


def segments(row):
    """The texts between the special tokens of a row, each of consecutive positions."""
    parts = np.split(row, np.flatnonzero(row <= SEP))
    parts = [part[part > SEP] for part in parts]
    parts = [part for part in parts if len(part)]
    for part in parts:
        np.testing.assert_array_equal(np.diff(part), 1)
    return parts


def share(part, whole, expected):
    """A share of n draws is within four standard deviations of what it should be."""
    n, found = np.size(whole), np.sum(part) / np.size(whole)
    deviation = np.sqrt(expected * (1 - expected) / n)
    assert abs(found - expected) < 4 * deviation, (found, expected, deviation)
    assert n > 1000


ONE_KIND = dict.fromkeys(formats.SEGMENTS, 0.0) | {"bidirectional": 1.0}
# Objectives of pairs, their settings, and what the labels 0, 1, ... say of B.
PAIRS = [
    ("bert", {}, ["next", "random"]),
    ("albert", {}, ["next", "previous"]),
    ("albert", {"sentences": "next"}, ["next", "random"]),
    ("structbert", {}, ["next", "previous", "random"]),
    ("unilm", ONE_KIND, ["next", "random"]),
]


@pytest.mark.parametrize(("name", "settings", "kinds"), PAIRS)
def test_labels_of_pairs_are_true(name, settings, kinds):
    batch = rows(name, **settings)
    assert set(batch["label"][:, 0]) == set(range(len(kinds)))
    for row, label in zip(batch["targets"], batch["label"][:, 0], strict=True):
        a, b = segments(row)
        assert row[0] == CLS
        same = places(a[0])[0] == places(b[0])[0]
        # Where the longer segment was cut to fit, some tokens are missing between the two.
        order = "next" if b[0] > a[-1] else "previous"
        assert kinds[label] == (order if same else "random")


@pytest.mark.parametrize(("name", "settings", "kinds"), PAIRS)
def test_rows_of_pairs_are_full_or_short_or_end_a_document(name, settings, kinds):
    batch = rows(name, **settings)
    sizes = (batch["targets"] >= 0).sum(axis=1)
    assert sizes.max() == 64
    assert (sizes >= 62).mean() > 0.65
    found = {int(places(segments(row)[0][0])[0]) for row in batch["targets"]}
    assert found == set(range(DOCUMENTS))


def test_unilms_rows_are_of_the_kind_that_their_segments_show():
    batch = rows("unilm", epochs=4)
    found = []
    for row, types, label in zip(
        batch["targets"], batch["token_types"], batch["label"], strict=True
    ):
        parts, real = segments(row), types[row >= 0]
        [kind] = [kind for kind, (first, _) in formats.SEGMENTS.items() if first == types[0]]
        first, second = formats.SEGMENTS[kind]
        expected = [first] * (len(parts[0]) + 2)
        if len(parts) > 1:
            expected += [second] * (len(parts[1]) + 1)
        assert real.tolist() == expected
        assert len(parts) == (1 if kind in {"left_to_right", "right_to_left"} else 2)
        if kind == "sequence_to_sequence":
            # Where the longer segment was cut to fit, some tokens are missing between the two.
            assert places(parts[0][0])[0] == places(parts[1][-1])[0]
            assert parts[1][0] > parts[0][-1]
        assert label == 0 or kind == "bidirectional"
        found.append(kind)
    for kind, expected in zip(formats.SEGMENTS, (1 / 3, 1 / 3, 1 / 6, 1 / 6), strict=True):
        share(np.array(found) == kind, found, expected)


def test_half_of_berts_pairs_are_random():
    labels = rows("bert", epochs=8)["label"]
    # A last sentence alone is always in a random pair: that may be a row in fifty. The other half
    # of it, and four standard deviations of 5,000 draws, are the room on both sides.
    assert 0.47 < labels.mean() < 0.54
    assert labels.size > 4000


def test_half_of_alberts_pairs_are_swapped_and_a_third_of_structberts_are_of_each_kind():
    labels = rows("albert", epochs=4)["label"]
    share(labels == 1, labels, 1 / 2)
    labels = rows("structbert", epochs=4)["label"]
    for kind in range(3):
        share(labels == kind, labels, 1 / 3)


def test_a_tenth_of_the_rows_are_short():
    lengths = np.full(20_000, SENTENCE)
    one = DocumentGroup.of(np.arange(100_000), lengths, np.array([20_000]), longest=61)
    plan = functools.partial(formats.segment_pairs, pairing=formats.next_or_previous)
    planned = plan(one, 61, [random.Random(0)], short_rate=0.1)
    sizes = np.array([sum(end - start for start, end in row.pieces) for row in planned[:-1]])
    # Of 2 to 61 tokens, to the end of the sentence: 54 of the 60 numbers give 55 at most.
    share(sizes <= 55, sizes, 0.1 * 54 / 60)
    assert sizes.min() == SENTENCE
    assert sizes.max() == 61


@pytest.mark.parametrize(("form", "inside"), [("full_sentences", False), ("doc_sentences", True)])
def test_rows_of_sentences_are_the_text_and_full(form, inside):
    targets = rows("roberta", format=form)["targets"]
    text = targets[targets > SEP]
    np.testing.assert_array_equal(text, np.arange(FIRST, FIRST + TEXT))
    ends = []
    for row in targets:
        texts = segments(row)
        assert all((part[0] - FIRST) % SENTENCE == 0 for part in texts)
        assert all((part[-1] + 1 - FIRST) % SENTENCE == 0 for part in texts)
        ends.append(len(texts))
    if inside:
        assert set(ends) == {1}
        assert len(targets) == DOCUMENTS * 5  # four of 60 tokens and one of 10
    else:
        assert set(ends) == {1, 2}
        assert len(targets) < DOCUMENTS * DOCUMENT / 55


def test_sentence_pairs_are_of_one_sentence_each():
    batch = rows("roberta", format="sentence_pair")
    pairs = [segments(row) for row in batch["targets"]]
    assert {len(part) for pair in pairs for part in pair} == {SENTENCE}
    real = np.array([b[0] == a[-1] + 1 for a, b in pairs])
    np.testing.assert_array_equal(real, batch["label"][:, 0] == 0)
    assert (batch["targets"] == SEP).sum(axis=1).tolist() == [3] * len(pairs)
    assert abs(real.mean() - 0.5) < 0.05


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "spanbert", "albert", "structbert", "electra", "unilm"]
)
def test_noise_is_15_percent_of_the_text_of_each_row_and_never_a_special_token(name):
    batch = rows(name)
    noise, text = batch["loss_weights"] > 0, batch["targets"] > MASK
    assert not (noise & ~text).any()
    budget = np.maximum(np.rint(0.15 * text.sum(axis=1)), 1)
    missing = budget - noise.sum(axis=1)
    if name in {"spanbert", "albert"}:  # of whole words: at times the last one does not fit
        assert missing.min() >= 0
        assert missing.mean() < 0.5
    else:
        assert not missing.any()
    shuffled = batch.get("shuffled", np.zeros_like(text)) > 0
    untouched = ~noise & ~shuffled
    np.testing.assert_array_equal(batch["inputs"][untouched], batch["targets"][untouched])


def test_etc_numbers_the_sentences_of_a_row_and_hides_some_as_a_whole():
    batch = rows("etc", epochs=20, hidden_rate=0.25)
    inputs, targets = batch["inputs"], batch["targets"]
    text, hidden, noise = targets > MASK, batch["hidden"] > 0, batch["loss_weights"] > 0
    numbers = np.where(text, (targets - FIRST) // SENTENCE, -1)
    first = np.where(text, numbers, TEXT).min(axis=1, keepdims=True)
    np.testing.assert_array_equal(
        np.where(text, batch["sentences"], 0), np.where(text, numbers - first + 1, 0)
    )
    assert not batch["sentences"][(targets == CLS) | (targets == SEP)].any()
    counts = np.maximum(batch["sentences"], 0).max(axis=1)
    assert set(counts) == {2, 12}  # 50 sentences of a document are four rows of 12 and one of 2
    # Each is hidden as a whole: 3 of 12, 1 of 2, any as likely as any other.
    of_sentence = np.stack(
        [(hidden & (batch["sentences"] == n)).sum(axis=1) for n in range(1, 13)], axis=1
    )
    assert set(np.unique(of_sentence)) == {0, SENTENCE}
    np.testing.assert_array_equal((of_sentence > 0).sum(axis=1), np.where(counts == 12, 3, 1))
    for found in (of_sentence[counts == 12] > 0).T:
        share(found, found, 0.25)
    assert (inputs[hidden] == MASK).all()
    # Noise is 15% of the rest, in whole words, and written as BERT's.
    assert not (noise & (hidden | ~text)).any()
    budget = np.maximum(np.rint(0.15 * (text & ~hidden).sum(axis=1)), 1)
    missing = budget - noise.sum(axis=1)
    assert missing.min() >= 0
    assert missing.mean() < 0.5
    share(inputs[noise] == MASK, inputs[noise], 0.8)
    share(inputs[noise] == targets[noise], inputs[noise], 0.1)
    np.testing.assert_array_equal(inputs[~noise & ~hidden], targets[~noise & ~hidden])


def test_albert_masks_the_same_n_grams_whatever_its_label():
    """Spans of one, two and three words, 6 : 3 : 2 (section 4.1), by how long runs of noise are."""
    found = {}
    for sentences in ("order", "next", "none"):
        batch = rows("albert", rate=0.05, sentences=sentences, epochs=2)
        words = VOCABULARY.word_starts[np.maximum(batch["targets"], 0)]
        noise = (batch["loss_weights"] > 0) & (batch["targets"] > MASK)
        first = noise.copy()
        first[:, 1:] &= ~noise[:, :-1]
        number = np.cumsum(first, axis=1) + 1000 * np.arange(len(first))[:, None]
        sizes = np.unique(number[noise & words], return_counts=True)[1]
        found[sentences] = np.bincount(sizes, minlength=4)[1:4] / len(sizes)
    np.testing.assert_allclose(found["next"], found["order"], atol=0.03)
    np.testing.assert_allclose(found["none"], found["order"], atol=0.03)


def test_noise_is_masked_random_or_kept():
    batch = rows("bert", epochs=4)
    noise = batch["loss_weights"] > 0
    inputs, targets = batch["inputs"][noise], batch["targets"][noise]
    changed = (inputs != MASK) & (inputs != targets)
    share(inputs == MASK, inputs, 0.8)
    share(changed, inputs, 0.1)
    share(inputs == targets, inputs, 0.1)
    sampled = inputs[changed]
    assert sampled.min() >= FIRST
    # Uniform over the vocabulary: the mean of n draws has a deviation of 1 / sqrt(12 n).
    assert abs((sampled - FIRST).mean() / TEXT - 0.5) < 4 / np.sqrt(12 * sampled.size)
    assert sampled.max() > FIRST + 0.98 * TEXT


def test_noise_of_bert_is_anywhere_alike():
    batch = rows("roberta", length=62, format="doc_sentences", epochs=8)
    full = (batch["targets"] >= 0).sum(axis=1) == 62
    noise = batch["loss_weights"][full][:, 1:-1] > 0
    deviation = np.sqrt(0.15 * 0.85 / len(noise))
    assert np.abs(noise.mean(axis=0) - 0.15).max() < 4.5 * deviation  # of 60 places
    neighbours = (noise[:, 1:] & noise[:, :-1]).mean()
    assert abs(neighbours - 0.15 * 8 / 59) < 0.002  # 9 of 60, without replacement


def test_electra_masks_all_of_its_noise_in_one_segment_or_two():
    batch = rows("electra", epochs=4)
    assert (batch["inputs"][batch["loss_weights"] > 0] == MASK).all()
    parts = [segments(row) for row in batch["targets"]]
    assert {len(part) for part in parts} == {1, 2}
    single = np.mean([len(part) == 1 for part in parts])
    assert 0.07 < single < 0.16  # a tenth, and the rows of a sentence alone
    for part in parts:
        if len(part) == 2 and sum(map(len, part)) == 61:
            assert abs(len(part[0]) - len(part[1])) <= 2 * SENTENCE


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("bert", {"whole_word": True}),
        ("spanbert", {}),
        ("albert", {}),
        ("albert", {"sentences": "next"}),
        ("albert", {"sentences": "none"}),
    ],
)
def test_words_are_noise_as_a_whole(name, settings):
    batch = rows(name, **settings)
    noise, targets = batch["loss_weights"] > 0, batch["targets"]
    inside = np.zeros_like(noise)  # goes on with the word of the token before
    starts = np.concatenate([VOCABULARY.word_starts, [True]])
    inside[:, 1:] = ~starts[targets[:, 1:]] & (targets[:, :-1] > MASK)
    assert inside.sum() > 10_000
    np.testing.assert_array_equal(noise[:, 1:][inside[:, 1:]], noise[:, :-1][inside[:, 1:]])


def test_shuffled_trigrams_are_5_percent_of_what_is_not_masked():
    batch = rows("structbert", length=128, epochs=2)
    shuffled, noise = batch["shuffled"] > 0, batch["loss_weights"] > 0
    text = batch["targets"] > MASK
    assert not (shuffled & noise).any()
    assert not (shuffled & ~text).any()
    budget = 3 * np.rint(0.05 * (text & ~noise).sum(axis=1) / 3)
    np.testing.assert_array_equal(shuffled.sum(axis=1), budget)
    count = shuffled.sum() / (text & ~noise).sum()
    assert abs(count - 0.05) < 0.005  # rounded to whole trigrams
    moved = batch["inputs"] - batch["targets"]
    assert set(moved[shuffled].tolist()) == {-2, -1, 0, 1, 2}
    same = (moved[shuffled] == 0).mean()
    assert abs(same - 3 / 15) < 0.03  # of five orders three leave one token where it is
    np.testing.assert_array_equal((moved * shuffled).sum(axis=1), 0)


def test_a_seed_fixes_every_row_and_another_changes_them():
    first, second = (rows("bert", seed=seed)["inputs"] for seed in (0, 1))
    again = rows.__wrapped__("bert", seed=0)["inputs"]
    np.testing.assert_array_equal(first, again)
    assert (first[:50] == second[:50]).all(axis=1).sum() < 5
