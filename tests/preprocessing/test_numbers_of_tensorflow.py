"""Random numbers and string hashes without TensorFlow: those of TensorFlow."""

import numpy as np
import pytest
import tensorflow as tf

from t5x_like.grain_pipeline import corpus
from t5x_like.grain_pipeline.tensorflow_values import dataset_words, fingerprint
from t5x_like.preprocessing import sources

SEEDS = [0, 1, 12345, 2**31 - 2, 2**31 - 1, 2**31 + 5]


@pytest.mark.parametrize("first", [0, 3, 64])
def test_the_words_of_a_random_dataset(first):
    # The seed is a tensor, as where noise seeds are raised.
    random = (tf.data.Dataset.random(tf.constant(seed, tf.int64)) for seed in SEEDS)
    expected = [[*numbers.take(first + 9).as_numpy_iterator()][first:] for numbers in random]
    np.testing.assert_array_equal(dataset_words(SEEDS, first=first, count=9), expected)


def test_hashes_of_strings_of_every_length():
    generator = np.random.default_rng(0)
    texts = [generator.bytes(size) for size in (*range(300), 5000)]
    buckets = 2**62 + 1
    expected = tf.strings.to_hash_bucket_fast(texts, buckets).numpy()
    np.testing.assert_array_equal([fingerprint(text) % buckets for text in texts], expected)


def test_the_same_documents_are_held_out():
    texts = [" " + "  über\t" * (n % 30) + f" {n}\v\n" for n in range(500)]
    expected = sources.held_out(tf.constant(texts), fraction=0.3).numpy()
    assert [corpus.is_held_out(text, fraction=0.3) for text in texts] == [*expected]
    assert 100 < sum(expected) < 200
