"""Words and their characters: vocabularies, two streams of text, labelled rows."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5x_like import vocabularies
from t5x_like.batches.converters import EncoderConverter
from t5x_like.batches.labelled_rows import WordRowWriter
from t5x_like.objectives import examples_of
from t5x_like.objectives.bidirectional import streams
from t5x_like.preprocessing import seqio_objectives
from t5x_like.preprocessing.pipeline import SeqioBatches
from t5x_like.preprocessing.sources import add_document_task
from t5x_like.preprocessing.task_vocabulary import TaskVocabulary
from t5x_like.vocabularies import trainers
from t5x_like.vocabularies.words import WordVocabulary, spell
from tests.number_vocabulary import NumberVocabulary

WORDS = ("</S>", "<S>", "<UNK>", "he", "came", ".", "do", "n't", "do n't")
VOCABULARY = WordVocabulary(WORDS)
ROWS, LENGTH = 2, 4
TEXTS = ["he came.", "zoë came", "", "he came he came he.", "came. he do n't"]


def test_a_word_is_its_bytes_between_two_marks():
    np.testing.assert_array_equal(spell("hé")[:6], [259, 105, 196, 170, 260, 261])
    assert set(spell("hé")[6:]) == {261}
    np.testing.assert_array_equal(spell("<S>")[:4], [259, 257, 260, 261])
    np.testing.assert_array_equal(spell("</S>")[:4], [259, 258, 260, 261])
    long = spell("x" * 90)
    assert (long[0], *set(long[1:49]), long[49]) == (259, ord("x") + 1, 260)


def test_text_that_is_split_already_stays_so():
    assert VOCABULARY.words("he do n't. (came)") == [
        "he",
        "do",
        "n",
        "'",
        "t",
        ".",
        "(",
        "came",
        ")",
    ]
    assert VOCABULARY.words("do n't came .") == ["do", "n't", "came", "."]
    ids, spans = VOCABULARY.encode_with_offsets(" he came.  zoë")
    assert ids == [3, 4, 5, 2] == VOCABULARY.encode("he came. zoë")
    assert spans == [(1, 3), (4, 8), (8, 9), (11, 14)]
    assert VOCABULARY.decode([3, 4, 2, 99]) == "he came <UNK> <UNK>"
    assert (VOCABULARY.bos_id, VOCABULARY.eos_id, VOCABULARY.unk_id) == (1, 0, 2)


def test_a_file_of_words_is_trained_and_read(tmp_path):
    path = tmp_path / "vocab.txt"
    trainers.train(["b a. a", "<S> c a"], vocab_size=6, kind="words", output=path)
    assert path.read_text().split() == ["<S>", "</S>", "<UNK>", "a", ".", "<"]
    found = vocabularies.load(path)
    assert isinstance(found, WordVocabulary)
    assert found == WordVocabulary(path.read_text().split())
    with pytest.raises(ValueError, match=r"--size=60: the text gives only \d+ words"):
        trainers.train(["b a"], vocab_size=60, kind="words", output=path)
    path.write_text("<S>\n</S>\n<UNK>\na\na\n")
    with pytest.raises(ValueError, match="has the word 'a' on two lines"):
        vocabularies.load(path)


def spelled(words):
    return np.stack([spell(word) for word in words])


def test_each_direction_reads_one_mark_and_predicts_the_other():
    found = streams("zoë came", VOCABULARY)
    inputs, targets, backward = found[:, :3].T
    assert inputs.tolist() == [1, 2, 4]
    assert targets.tolist() == [2, 4, 0]
    assert backward.tolist() == [4, 2, 1]
    np.testing.assert_array_equal(found[:, 3:53], spelled(["<S>", "zoë", "came"]))
    np.testing.assert_array_equal(found[:, 53:], spelled(["</S>", "came", "zoë"]))
    assert streams(" ", VOCABULARY).shape == (0, 103)


def converter():
    return EncoderConverter(**examples_of("bidirectional_lm", {}).converter_settings).continued(
        end=0
    )


def batches(vocabulary=VOCABULARY, **settings):
    def documents(split, shuffle_files=False, seed=None):
        return tf.data.Dataset.from_tensor_slices({"text": TEXTS})

    add_document_task(
        "words",
        source=seqio.FunctionDataSource(documents, splits=["train"]),
        vocabulary=vocabulary,
        objective=seqio_objectives.build("bidirectional_lm"),
    )
    defaults = {
        "split": "train",
        "batch_size": ROWS,
        "lengths": {"inputs": LENGTH},
        "converter": converter(),
        "shards": ROWS,
        "shuffle": False,
    }
    return SeqioBatches("words", **{**defaults, **settings})


def test_both_streams_run_on_from_batch_to_batch():
    found = [batch for batch, _ in zip(batches(), range(9), strict=False)]
    for row in range(ROWS):
        rows = [{name: values[row] for name, values in batch.items()} for batch in found]
        real = [one["encoder_segment_ids"] > 0 for one in rows]
        whole = {
            name: np.concatenate([one[name][k] for one, k in zip(rows, real, strict=True)])
            for name in rows[0]
        }
        expected = np.concatenate([streams(text, VOCABULARY) for text in TEXTS[row::ROWS]] * 9)
        size = len(whole["encoder_target_tokens"])
        assert size > 2 * len(expected) / 9
        columns = {
            "encoder_input_tokens": 0,
            "encoder_target_tokens": 1,
            "encoder_backward_targets": 2,
            "encoder_characters": slice(3, 53),
            "encoder_backward_characters": slice(53, None),
        }
        for name, column in columns.items():
            np.testing.assert_array_equal(whole[name], expected[:size, column], err_msg=name)
        assert (whole["encoder_loss_weights"] == 1).all()
        assert sum(one["encoder_loss_weights"].sum() for one in rows) == size


@pytest.mark.parametrize("step", [1, 4])
def test_a_position_of_the_streams_is_restored(step):
    whole, first, second = batches(), batches(), batches()
    expected = [next(whole) for _ in range(step + 3)][step:]
    for _ in range(step):
        next(first)
    second.restore(first.state())
    for batch in expected:
        np.testing.assert_equal(next(second), batch)


def test_streams_need_words_and_rows_that_fit():
    with pytest.raises(ValueError, match=r"is not one of whole words, .*--kind=words"):
        batches(NumberVocabulary(100))
    with pytest.raises(ValueError, match=r"data\.lengths\.inputs=0 must be 1 or more"):
        batches(lengths={"inputs": 0})
    with pytest.raises(ValueError, match=r"EncoderConverter makes examples of their own"):
        EncoderConverter(features=("inputs", "targets")).continued(end=0)


def test_rows_of_labelled_words():
    writer = WordRowWriter(VOCABULARY, length=6)
    row = writer.of_text("he came", "zoë.")
    assert row.tokens.tolist() == [1, 3, 4, 0, 2, 0]  # the last word does not fit
    np.testing.assert_array_equal(
        row.characters, spelled(["<S>", "he", "came", "</S>", "zoë", "</S>"])
    )
    row, places = writer.of_words(["he", "came.", "zoë", "do", "came"])
    assert row.tokens.tolist() == [1, 3, 2, 2, 6, 0]
    assert places.tolist() == [1, 2, 3, 4, -1]
    with pytest.raises(ValueError, match=r"lengths\.inputs=2: rows .* need 3 words"):
        WordRowWriter(VOCABULARY, length=2)


def test_an_objective_of_labelled_words_has_their_characters():
    rows = {"words": tf.ragged.constant([["he", "zoë"]]), "tags": tf.ragged.constant([[1, 2]])}
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    objective = seqio_objectives.build("word_tagging")
    feature = seqio.Feature(vocabulary=TaskVocabulary(VOCABULARY), add_eos=False)
    (write,) = objective.preprocessors
    (found,) = write(
        dataset, sequence_length={"inputs": 8}, output_features={"inputs": feature}
    ).as_numpy_iterator()
    assert found["inputs"].tolist() == [1, 3, 2, 0]
    assert found["targets"].tolist() == [0, 1, 2, 0]
    assert found["loss_weights"].tolist() == [0, 1, 1, 0]
    np.testing.assert_array_equal(
        found["characters"].reshape(-1, 50), spelled(["<S>", "he", "zoë", "</S>"])
    )
