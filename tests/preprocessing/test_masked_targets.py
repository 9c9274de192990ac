"""Pairs for an encoder that learns to write: one row to read by eye, its noise, its limits."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from data import text_files
from t5x_like import vocabularies
from t5x_like.batches import converters
from t5x_like.objectives import masking
from t5x_like.preprocessing import seqio_objectives
from t5x_like.preprocessing.pipeline import SeqioBatches
from t5x_like.preprocessing.task_vocabulary import TaskVocabulary
from tests.word_vocabulary import WordVocabulary

VOCABULARY = WordVocabulary(["how", "do", "you", "?", "fine", ",", "thanks", "well"])
PAIR = {"inputs": "how do you do ?", "targets": "fine , thanks"}


def rows(pairs, *, length=16, vocabulary=VOCABULARY, **settings):
    """The rows of some pairs."""
    objective = seqio_objectives.build("masked_targets", **settings)
    columns = {name: [pair[name] for pair in pairs] for name in PAIR}
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    with seqio.utils.map_seed_manager(3):
        for step in objective.preprocessors:
            step = seqio.utils.add_kwargs_to_transform(
                step,
                sequence_length={"inputs": length},
                output_features=dict.fromkeys(
                    objective.features, seqio.Feature(TaskVocabulary(vocabulary))
                ),
            )
            dataset = step(dataset)
    return list(dataset.as_numpy_iterator())


def test_a_row_to_read_by_eye(monkeypatch):
    def choose(generator, text, *, budget):
        assert budget == [3]  # of 4, the [SEP] among them
        noise = np.zeros(text.shape, np.int64)
        noise[0, [7, 8, 10]] = 1, 2, 3
        return noise

    monkeypatch.setattr(masking, "single_tokens", choose)
    (row,) = rows([PAIR], target_length=8, random_rate=0.0, kept_rate=0.0)
    expected = "[CLS] how do you do ? [SEP] [MASK] [MASK] thanks [MASK]"
    assert VOCABULARY.decode(row["inputs"]) == expected
    assert VOCABULARY.decode(row["targets"]) == "[CLS] how do you do ? [SEP] fine , thanks [SEP]"
    np.testing.assert_array_equal(row["loss_weights"], [0] * 7 + [1, 1, 0, 1])
    np.testing.assert_array_equal(row["token_types"], [4] * 7 + [5] * 4)


def test_seven_tenths_of_the_target_and_its_end_are_noise_eight_tenths_of_it_masks():
    pair = {"inputs": "how do you", "targets": "fine , thanks well fine , thanks well fine"}
    found = rows([pair] * 2000, target_length=12)
    weights = np.stack([row["loss_weights"] for row in found])
    inputs, targets = (np.stack([row[name] for row in found]) for name in ("inputs", "targets"))
    np.testing.assert_array_equal(weights[:, :5], 0)
    np.testing.assert_array_equal(weights[:, 5:].sum(axis=1), 7)
    # 2000 rows: five deviations of a share of 0.7 are 0.051, of shares of 14,000 tokens 0.017.
    np.testing.assert_allclose(weights[:, 5:].mean(axis=0), 0.7, atol=0.051)
    noise = weights == 1
    masks = (inputs == VOCABULARY.mask_id)[noise].mean()
    kept = (inputs == targets)[noise].mean()
    assert abs(masks - 0.8) < 0.017
    assert abs(kept - 0.1 - 0.1 * 3 / 10 / len(VOCABULARY.pieces)) < 0.02
    np.testing.assert_array_equal(inputs[~noise], targets[~noise])


def test_what_is_too_long_loses_its_end():
    long = {"inputs": "how do you do ? how do you", "targets": "fine , thanks well ?"}
    (row,) = rows([long], length=9, target_length=4)
    assert VOCABULARY.decode(row["targets"]) == "[CLS] how do you [SEP] fine , thanks [SEP]"
    (row,) = rows([long | {"targets": "well"}], length=9, target_length=4)
    assert VOCABULARY.decode(row["targets"]) == "[CLS] how do you do ? [SEP] well [SEP]"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 1.0}, "rate must lie between 0 and 1"),
        ({"kept_rate": 0.95}, "together at most 1"),
        ({"target_length": 14}, "lengths.inputs=16"),
        ({"target_length": 1}, "target_length=1 must be 2 or more"),
        ({"targe_length": 4}, "target_length"),
    ],
)
def test_bad_settings_are_errors_before_anything_is_read(settings, message):
    with pytest.raises(ValueError, match=message):
        rows([PAIR], **settings)


def test_documents_are_no_pairs():
    objective = seqio_objectives.build("masked_targets")
    documents = tf.data.Dataset.from_tensor_slices({"text": ["how do you do ?"]})
    with pytest.raises(ValueError, match="needs pairs; the task's rows lack inputs, targets"):
        objective.preprocessors[1](documents, {"inputs": 99}, {})


def test_a_vocabulary_without_special_tokens_is_refused():
    with pytest.raises(ValueError, match="has no cls_id, sep_id, mask_id"):
        rows([PAIR], vocabulary=vocabularies.load("bytes"), target_length=8)


def test_pairs_of_files_become_batches_with_new_noise_in_each_epoch(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"q": "how do you do ?", "a": "fine , thanks well fine , thanks"}\n' * 4)
    objective = seqio_objectives.build("masked_targets", target_length=8)
    text_files.register(VOCABULARY, objective, files=str(path), inputs="q", targets="a", held_out=0)
    stream = SeqioBatches(
        "text_files",
        split="train",
        batch_size=4,
        lengths={"inputs": 16},
        converter=converters.build("encoder", **objective.converter_settings),
        shards=1,
    )
    first, second = next(stream), next(stream)
    np.testing.assert_array_equal(first["encoder_token_types"][0], [4] * 7 + [5] * 8 + [0])
    np.testing.assert_array_equal(first["encoder_segment_ids"][0], [1] * 15 + [0])
    np.testing.assert_array_equal(first["encoder_loss_weights"].sum(axis=1), 6)
    assert np.any(first["encoder_loss_weights"] != second["encoder_loss_weights"])
