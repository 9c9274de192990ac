"""Sentences and their translations (Vaswani et al. 2017, section 5.1)."""

import seqio
import tensorflow as tf

from t5x_like.preprocessing.objectives.objective import Objective, make
from t5x_like.preprocessing.objectives.running_text.lengths import (
    Lengths,
    OutputFeatures,
    check_features,
)


def translation() -> Objective:
    """Tokenize {"inputs": string, "targets": string}, each side ended by EOS.

    A pair is dropped if a side has more tokens than its length allows, including EOS: if it were
    truncated, as in `text_to_text`, the sides would no longer be translations of each other.

    Raises (when the dataset is built, before anything is read):
        ValueError: a length is missing or below 2.
    """
    tokenize, append_eos = seqio.preprocessors.tokenize, seqio.preprocessors.append_eos
    return make("translation", (tokenize, _whole, append_eos))


def _whole(
    dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
) -> tf.data.Dataset:
    """Keep the pairs whose sides both fit."""
    sides = ("inputs", "targets")
    check_features("translation", names=sides, lengths=sequence_length, features=output_features)
    assert sequence_length is not None  # checked above; for the type checker
    rooms = {name: sequence_length[name] - output_features[name].add_eos for name in sides}
    return dataset.filter(
        lambda pair: tf.reduce_all([tf.size(pair[name]) <= room for name, room in rooms.items()])
    )
