"""States of tf.data iterators: whole, made in memory, and those of older checkpoints."""

import errno
import os
import tempfile

import pytest
import tensorflow as tf

from t5x_like.preprocessing import streams


def iterator():
    """Shuffled numbers, each with noise of its own."""
    noise = tf.data.Dataset.random(seed=2)
    numbers = tf.data.Dataset.range(100).shuffle(20, seed=1)
    return iter(tf.data.Dataset.zip(numbers, noise))


def take(numbers, count):
    return [tuple(map(int, next(numbers))) for _ in range(count)]


def as_files(numbers, folder):
    """The state as checkpoints had it: the files of a TensorFlow checkpoint."""
    tf.train.Checkpoint(iterator=numbers).write(str(folder / "iterator"))
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("read", [0, 7])
def test_a_state_needs_no_temporary_folder(monkeypatch, read):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    numbers, resumed = iterator(), iterator()
    take(numbers, read)
    streams.load(resumed, streams.save(numbers, task="numbers"))
    assert take(resumed, 40) == take(numbers, 40)


def test_a_state_in_several_parts_is_restored(monkeypatch):
    monkeypatch.setattr(streams, "_TOGETHER", 2)
    numbers, resumed = iterator(), iterator()
    take(numbers, 7)
    saved = streams.save(numbers, task="numbers")
    assert len(saved["parts"]) > 1
    streams.load(resumed, saved)
    assert take(resumed, 40) == take(numbers, 40)


def test_a_state_of_an_older_checkpoint_is_restored(tmp_path):
    numbers, resumed = iterator(), iterator()
    take(numbers, 7)
    streams.load(resumed, as_files(numbers, tmp_path))
    assert take(resumed, 40) == take(numbers, 40)
