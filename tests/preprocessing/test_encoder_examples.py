"""One row of each encoder objective to read by eye, and what the objectives refuse."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5x_like import vocabularies
from t5x_like.batches import converters
from t5x_like.objectives import formats, grouping, masking
from t5x_like.preprocessing import seqio_objectives
from t5x_like.preprocessing.task_vocabulary import TaskVocabulary
from tests.word_vocabulary import WordVocabulary

STORE = "the man went to the store .\nhe bought a gallon of milk ."
BALL = "an american foot ##ball game"
VOCABULARY = WordVocabulary(sorted({*STORE.split(), *BALL.split(), "so", "it", "is"}))
FEATURES = {"inputs": seqio.Feature(TaskVocabulary(VOCABULARY))}


def rows(name, texts, *, length=24, seed=0, **settings):
    """The examples of an objective over documents: tokens as words, all else as lists."""
    objective = seqio_objectives.build(name, **settings)
    dataset = tf.data.Dataset.from_tensor_slices({"text": list(texts)})
    with seqio.utils.map_seed_manager(seed):
        for step in objective.preprocessors:
            step = seqio.utils.add_kwargs_to_transform(
                step, sequence_length={"inputs": length}, output_features=FEATURES
            )
            dataset = step(dataset)
    words = {"inputs", "targets"}
    return [
        {k: VOCABULARY.decode(v) if k in words else v.tolist() for k, v in example.items()}
        for example in dataset.as_numpy_iterator()
    ]


def noise_at(monkeypatch, function, *places):
    """Makes a function of `masking` choose these places of the one row: a tuple for each span."""

    def choose(generator, text, **_):
        noise = np.zeros_like(getattr(text, "of_token", text), dtype=np.int64)
        for number, span in enumerate(places, start=1):
            noise[0, list(span)] = number
        return noise

    monkeypatch.setattr(masking, function, choose)


ONLY_MASKS = {"random_rate": 0, "kept_rate": 0}


def test_bert_by_eye(monkeypatch):
    noise_at(monkeypatch, "single_tokens", (5,), (12,))
    [row] = rows("bert", [STORE], **ONLY_MASKS)
    assert row == {
        "inputs": "[CLS] the man went to [MASK] store . [SEP] he bought a [MASK] of milk . [SEP]",
        "targets": "[CLS] the man went to the store . [SEP] he bought a gallon of milk . [SEP]",
        "loss_weights": [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0],
        "token_types": [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1],
        "label": [0],
    }


def test_bert_by_eye_keeps_some_noise_as_it_is_and_still_asks_for_it(monkeypatch):
    noise_at(monkeypatch, "single_tokens", (5,))
    [row] = rows("bert", [STORE], random_rate=0, kept_rate=1)
    assert row["inputs"] == row["targets"]
    assert sum(row["loss_weights"]) == row["loss_weights"][5] == 1


def test_bert_by_eye_without_pairs():
    [row] = rows("bert", [STORE], next_sentence=False)
    assert row["targets"] == "[CLS] the man went to the store . he bought a gallon of milk . [SEP]"
    assert "label" not in row
    assert not any(row["token_types"])


def test_whole_words_by_eye():
    found = [
        row["inputs"]
        for seed in range(20)
        for row in rows("bert", [BALL], seed=seed, whole_word=True, next_sentence=False, rate=0.4)
    ]
    halves = [(" foot " in inputs, " ##ball" in inputs) for inputs in found]
    assert (False, False) in halves
    assert {one == other for one, other in halves} == {True}


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (
            "full_sentences",
            ["[CLS] the man went to the store . he bought a gallon of milk . [SEP] so it is [SEP]"],
        ),
        (
            "doc_sentences",
            [
                "[CLS] the man went to the store . he bought a gallon of milk . [SEP]",
                "[CLS] so it is [SEP]",
            ],
        ),
    ],
)
def test_roberta_by_eye(form, expected):
    found = rows("roberta", [STORE, "so it is"], format=form)
    assert [row["targets"] for row in found] == expected
    assert set(found[0]) == {"inputs", "targets", "loss_weights"}


@pytest.mark.parametrize("form", ["segment_pair", "sentence_pair"])
def test_pairs_of_roberta_by_eye_have_two_separators(form):
    [row] = rows("roberta", [STORE], format=form)
    expected = "[CLS] the man went to the store . [SEP] [SEP] he bought a gallon of milk . [SEP]"
    assert (row["targets"], row["label"]) == (expected, [0])


def test_spanbert_by_eye(monkeypatch):
    noise_at(monkeypatch, "spans", (3, 4))
    [row] = rows("spanbert", [BALL], **ONLY_MASKS)
    assert row == {
        "inputs": "[CLS] an american [MASK] [MASK] game [SEP]",
        "targets": "[CLS] an american foot ##ball game [SEP]",
        "loss_weights": [0, 0, 0, 1, 1, 0, 0],
        "span_left": [0, 0, 0, 2, 2, 0, 0],  # american
        "span_right": [0, 0, 0, 5, 5, 0, 0],  # game
    }


def test_albert_by_eye(monkeypatch):
    noise_at(monkeypatch, "spans", (1, 2, 3))
    found = [rows("albert", [STORE], seed=seed, **ONLY_MASKS)[0] for seed in range(10)]
    in_order = "[CLS] [MASK] [MASK] [MASK] to the store . [SEP] he bought a gallon of milk . [SEP]"
    swapped = "[CLS] [MASK] [MASK] [MASK] gallon of milk . [SEP] the man went to the store . [SEP]"
    assert {(row["inputs"], *row["label"]) for row in found} == {(in_order, 0), (swapped, 1)}


def test_albert_by_eye_with_berts_label_and_with_none(monkeypatch):
    [row] = rows("albert", [STORE], sentences="next", **ONLY_MASKS)
    in_order = "[CLS] the man went to the store . [SEP] he bought a gallon of milk . [SEP]"
    assert (row["targets"], row["label"]) == (in_order, [0])
    noise_at(monkeypatch, "spans", (1, 2, 3))
    [row] = rows("albert", [STORE], sentences="none", **ONLY_MASKS)
    assert row["inputs"] == (
        "[CLS] [MASK] [MASK] [MASK] to the store . he bought a gallon of milk . [SEP]"
    )
    assert "label" not in row
    assert not any(row["token_types"])


def test_structbert_by_eye(monkeypatch):
    noise_at(monkeypatch, "single_tokens", (1,))
    noise_at(monkeypatch, "spans", (3, 4, 5))
    monkeypatch.setattr(masking, "_ORDERS", np.array([[1, 2, 0]]))
    found = [rows("structbert", [STORE], seed=seed, **ONLY_MASKS)[0] for seed in range(10)]
    row = next(row for row in found if row["label"] == [0])
    assert row["inputs"] == (
        "[CLS] [MASK] man to the went store . [SEP] he bought a gallon of milk . [SEP]"
    )
    assert row["shuffled"] == [0, 0, 0, 1, 1, 1] + [0] * 11
    assert sum(row["loss_weights"]) == row["loss_weights"][1] == 1
    before = next(row for row in found if row["label"] == [1])
    assert before["targets"] == (
        "[CLS] he bought a gallon of milk . [SEP] the man went to the store . [SEP]"
    )


def test_electra_by_eye(monkeypatch):
    noise_at(monkeypatch, "single_tokens", (2,), (11,))
    found = [rows("electra", [STORE], seed=seed)[0] for seed in range(20)]
    two = "[CLS] the [MASK] went to the store . [SEP] he bought [MASK] gallon of milk . [SEP]"
    one = "[CLS] the [MASK] went to the store . he bought a [MASK] of milk . [SEP]"
    assert {row["inputs"] for row in found} == {two, one}
    assert set(found[0]) == {"inputs", "targets", "loss_weights", "token_types"}


def test_unmasked_by_eye():
    found = [rows("unmasked", [STORE], seed=seed)[0] for seed in range(20)]
    two = "[CLS] the man went to the store . [SEP] he bought a gallon of milk . [SEP]"
    one = "[CLS] the man went to the store . he bought a gallon of milk . [SEP]"
    assert {row["inputs"]: row["token_types"] for row in found} == {
        two: [0] * 9 + [1] * 8,
        one: [0] * 16,
    }
    assert set(found[0]) == {"inputs", "token_types"}


PAIR = "[CLS] the man [MASK] [MASK] the store . [SEP] he [MASK] a gallon of milk . [SEP]"
SINGLE = "[CLS] the man [MASK] [MASK] the store . he bought [MASK] gallon of milk . [SEP]"


@pytest.mark.parametrize(
    ("kind", "inputs", "token_types"),
    [
        ("bidirectional", PAIR, [0] * 9 + [1] * 8),
        ("sequence_to_sequence", PAIR, [4] * 9 + [5] * 8),
        ("left_to_right", SINGLE, [2] * 16),
        ("right_to_left", SINGLE, [3] * 16),
    ],
)
def test_unilm_by_eye(monkeypatch, kind, inputs, token_types):
    noise_at(monkeypatch, "spans", (3, 4), (10,))
    shares = dict.fromkeys(formats.SEGMENTS, 0.0) | {kind: 1.0}
    [row] = rows("unilm", [STORE], **ONLY_MASKS, **shares)
    assert row["inputs"] == inputs
    assert row["token_types"] == token_types
    assert row["label"] == [0]


def test_etc_by_eye(monkeypatch):
    noise_at(monkeypatch, "single_tokens", (1,))  # of the three sentences
    noise_at(monkeypatch, "spans", (3,), (18,))
    [row] = rows("etc", [f"{STORE}\nit is so ."], **ONLY_MASKS)
    hidden = " ".join(["[MASK]"] * 7)
    text = STORE.replace("\n", " ")
    assert row == {
        "inputs": f"[CLS] the man [MASK] to the store . {hidden} it is so [MASK] [SEP]",
        "targets": f"[CLS] {text} it is so . [SEP]",
        "loss_weights": [0, 0, 0, 1] + [0] * 14 + [1, 0],
        "sentences": [0] + [1] * 7 + [2] * 7 + [3] * 4 + [0],
        "hidden": [0] * 8 + [1] * 7 + [0] * 5,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("A line\nanother\r\n\n  a third  \n", ["A line", "another", "a third"]),
        ('He said "no." Then he left.', ['He said "no."', "Then he left."]),
        (
            "In 1.5 s. 3 of them (see 2.). (Or not.)",
            ["In 1.5 s.", "3 of them (see 2.).", "(Or not.)"],
        ),
        ("e.g. this one, i.e. it", ["e.g. this one, i.e. it"]),
        ("Dr. Who", ["Dr.", "Who"]),  # a simple rule
        (" \n ", []),
    ],
)
def test_sentences_end_at_line_breaks_and_full_stops(text, expected):
    assert grouping.split(text) == expected


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("bert", {"rate": 1.0}, "bert: rate must lie between 0 and 1"),
        ("unilm", {"random_rate": 0.8, "kept_rate": 0.3}, "at most 1, got 0.8 and 0.3"),
        ("albert", {"short_rate": -1}, "albert: short_rate=-1 must be from 0 to 1"),
        ("roberta", {"format": "full_sentence"}, "mean 'full_sentences'"),
        ("roberta", {"copies": -1}, "roberta: copies=-1 must be 0 or more"),
        ("electra", {"group": 0}, "electra: group=0 must be 1 or more"),
        ("unmasked", {"short_rate": 2}, "unmasked: short_rate=2 must be from 0 to 1"),
        ("spanbert", {"span_p": 1}, "span_p=1 must lie between 0 and 1"),
        ("albert", {"longest": 0}, "longest=0 must be 1 or more"),
        ("albert", {"sentences": "ordered"}, "mean 'order'"),
        ("structbert", {"shuffle_rate": 1}, "shuffle_rate=1 must be 0 or more"),
        ("unilm", {"ngram_rate": 2}, "ngram_rate=2 must be from 0 to 1"),
        ("unilm", {"left_to_right": 0.5}, "must be 0 or more and sum to 1"),
        ("bert", {"whole_words": True}, "mean 'whole_word'"),
        ("etc", {"hidden_rate": 0.0}, "hidden_rate=0.0 must lie between 0 and 1"),
    ],
)
def test_bad_settings_are_refused(name, settings, message):
    with pytest.raises(ValueError, match=message):
        seqio_objectives.build(name, **settings)


def test_lengths_and_vocabularies_that_do_not_fit_are_refused_unread():
    tokenize, make_rows = seqio_objectives.build("bert").preprocessors
    dataset = tf.data.Dataset.from_tensors({"tokens": [0], "sentence_lengths": [1]})
    with pytest.raises(ValueError, match=r"bert needs lengths.inputs of 8 or more, got 7"):
        make_rows(dataset, sequence_length={"inputs": 7}, output_features=FEATURES)
    bytes_ = {"inputs": seqio.Feature(TaskVocabulary(vocabularies.load("bytes:0")))}
    with pytest.raises(ValueError, match="has no cls_id, sep_id, mask_id"):
        make_rows(dataset, sequence_length={"inputs": 9}, output_features=bytes_)
    with pytest.raises(ValueError, match=r'a feature "text".*content'):
        tokenize(tf.data.Dataset.from_tensors({"content": "a"}), output_features=FEATURES)


@pytest.mark.parametrize("name", ["bert", "spanbert"])
def test_rows_that_point_or_have_labels_are_not_packed(name):
    objective = seqio_objectives.build(name)
    converter = converters.build("encoder", **objective.converter_settings)
    with pytest.raises(ValueError, match=r"data.pack=True"):
        converters.check(converter, features=objective.features, lengths={"inputs": 9}, pack=True)


def test_the_last_words_of_a_document_are_its_rows():
    found = rows("bert", ["so", "", "it is"], seed=3, rate=0.5)  # a word alone still is a row
    assert len(found) == 2
    assert {row["targets"].split()[1] for row in found} == {"so", "it"}
