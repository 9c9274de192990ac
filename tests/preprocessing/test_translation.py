"""The objective of translation: an example to read by eye, and pairs that do not fit left out."""

import pytest
import seqio
import tensorflow as tf

from t5x_like.preprocessing import objectives

VOCABULARY = seqio.ByteVocabulary(extra_ids=0)
FEATURES = {name: seqio.Feature(VOCABULARY) for name in ("inputs", "targets")}


def run(pairs, **lengths):
    inputs, targets = map(list, zip(*pairs, strict=True))
    dataset = tf.data.Dataset.from_tensor_slices({"inputs": inputs, "targets": targets})
    tokenize, whole, end = objectives.build("translation").preprocessors
    dataset = end(whole(tokenize(dataset, FEATURES), lengths, FEATURES), FEATURES)
    return [
        (VOCABULARY.decode(e["inputs"].tolist()), e["targets"].tolist())
        for e in dataset.as_numpy_iterator()
    ]


def test_both_sides_are_tokens_and_an_end():
    assert run([("a cat", "eine")], inputs=9, targets=9) == [
        ("a cat", [*VOCABULARY.encode("eine"), 1])
    ]


def test_a_pair_is_left_out_where_a_side_and_its_end_do_not_fit():
    pairs = [("12345", "123"), ("123456", "1"), ("1", "1234")]
    assert [source for source, _ in run(pairs, inputs=6, targets=4)] == ["12345"]
    assert [source for source, _ in run(pairs, inputs=7, targets=5)] == [s for s, _ in pairs]


def test_lengths_are_needed():
    with pytest.raises(ValueError, match=r"translation needs lengths.targets of 2 or more"):
        run([("a", "b")], inputs=9)
