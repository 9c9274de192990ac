"""Chunks: every token of every document, in order, in full chunks, resumable anywhere."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from t5x_like.preprocessing.seqio_objectives import concatenate_and_split


def documents(sizes):
    """Documents of these sizes, of the tokens 1, 2, 3... without a repetition."""
    ends = np.cumsum(sizes)
    tokens = np.arange(1, ends[-1] + 1, dtype=np.int32)
    ragged = tf.RaggedTensor.from_row_lengths(tokens, np.asarray(sizes))
    return tf.data.Dataset.from_tensor_slices({"targets": ragged})


def chunks(dataset):
    return [example["targets"].tolist() for example in dataset.as_numpy_iterator()]


def test_documents_run_on_by_eye():
    assert chunks(concatenate_and_split(documents([2, 0, 3, 1, 7, 1]), length=4)) == [
        [1, 2, 3, 4],
        [5, 6, 7, 8],
        [9, 10, 11, 12],
        [13, 14],
    ]


@pytest.mark.parametrize(
    "sizes",
    [
        [0],
        [0, 0, 0],
        [1],
        [16],
        [15],
        [17],
        [1] * 50,
        [0, 16, 0, 16, 0],
        [1000],
        [5, 5_000, 1, 0, 3],
        list(range(60)),
    ],
)
def test_no_token_is_lost_moved_or_padded(sizes):
    result = chunks(concatenate_and_split(documents(sizes), length=16))
    assert list(itertools.chain(*result)) == list(range(1, sum(sizes) + 1))
    assert all(len(chunk) == 16 for chunk in result[:-1])
    assert all(result)


def test_no_documents_are_no_chunks():
    assert chunks(concatenate_and_split(documents([3]).take(0), length=16)) == []


def test_epochs_of_a_repeated_dataset_run_on_too():
    result = chunks(concatenate_and_split(documents([5]).repeat(), length=4).take(5))
    assert list(itertools.chain(*result)) == [1, 2, 3, 4, 5] * 4


def test_a_saved_iterator_goes_on_in_the_middle_of_a_document(tmp_path):
    dataset = concatenate_and_split(documents([7, 0, 90, 2, 31]), length=4)
    expected = chunks(dataset)
    iterator = iter(dataset)
    for _ in range(5):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "position"))
    for _ in range(7):
        next(iterator)  # moves on after the save, as a run that is then killed does
    restored = iter(dataset)
    tf.train.Checkpoint(iterator=restored).read(path).assert_consumed()
    assert [example["targets"].numpy().tolist() for example in restored] == expected[5:]
