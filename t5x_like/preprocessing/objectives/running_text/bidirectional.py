"""Bidirectional language modeling: two streams of words and their characters."""

import numpy as np
import tensorflow as tf
from jaxtyping import Int

from t5x_like.preprocessing.objectives.objective import Objective, make
from t5x_like.preprocessing.objectives.running_text import chunking
from t5x_like.preprocessing.objectives.running_text.lengths import Lengths, OutputFeatures
from t5x_like.vocabularies.words import (
    END,
    LONGEST,
    START,
    WordVocabulary,
    check_words,
    spell_all,
)

# The number of values of each feature per position of the streams.
_SIZES = {
    "inputs": 1,
    "targets": 1,
    "backward_targets": 1,
    "characters": LONGEST,
    "backward_characters": LONGEST,
}
_PLACE = sum(_SIZES.values())


def bidirectional_lm() -> Objective:
    """Predict each word from the words before it, and from those after it (ELMo, section 3.1).

    Peters et al. 2018. Each document adds to two streams, one for each direction:

        inputs            <S>  he   came        what the forward direction reads, as ids,
        characters                              and by its characters
        targets           he   came </S>
        backward_...      </S> came he          what the backward direction reads, by characters
        backward_targets  came he   <S>

    The streams continue across documents, and are cut into rows of the inputs' length.
    """

    def to_streams(dataset: tf.data.Dataset, output_features: OutputFeatures) -> tf.data.Dataset:
        if "text" not in dataset.element_spec or dataset.element_spec["text"].dtype != tf.string:
            raise ValueError(
                "data.objective='bidirectional_lm' reads the characters of a text, and the task's "
                f"rows have {sorted(dataset.element_spec)}: use a task whose rows have a 'text'"
            )
        vocabulary = check_words(output_features["inputs"].vocabulary.plain)

        def encode(text: bytes, digest: bytes) -> np.ndarray:
            del digest  # it distinguishes vocabularies in the fingerprint of a data position
            return streams(text.decode("utf-8", errors="replace"), vocabulary).reshape(-1)

        def to_places(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            arguments = [example["text"], tf.constant(vocabulary.digest)]
            places = tf.numpy_function(encode, arguments, tf.int32, stateful=False)
            return {"targets": tf.ensure_shape(places, [None])}

        return dataset.map(to_places, num_parallel_calls=tf.data.AUTOTUNE)

    def cut(dataset: tf.data.Dataset, sequence_length: Lengths) -> tf.data.Dataset:
        length = (sequence_length or {}).get("inputs") or 0
        if length < 1:
            raise ValueError(f"data.lengths.inputs={length} must be 1 or more words a row")
        rows = chunking.concatenate_and_split(dataset, length=length * _PLACE)
        return rows.map(_features, num_parallel_calls=tf.data.AUTOTUNE)

    return make("bidirectional_lm", (to_streams, cut))


def streams(text: str, vocabulary: WordVocabulary) -> Int[np.ndarray, "L {_PLACE}"]:
    """Return the positions of both streams for a document; none for a text without words."""
    words = vocabulary.words(text)
    if not words:
        return np.zeros([0, _PLACE], np.int32)
    whole = [START, *words, END]
    ids = np.array([vocabulary.id_of(word) for word in whole], np.int32)
    characters = spell_all(whole)
    parts = [ids[:-1, None], ids[1:, None], ids[-2::-1, None], characters[:-1], characters[:0:-1]]
    return np.concatenate(parts, axis=1)


def _features(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    places = tf.reshape(example["targets"], [-1, _PLACE])
    parts = tf.split(places, [*_SIZES.values()], axis=1)
    return {name: tf.reshape(part, [-1]) for name, part in zip(_SIZES, parts, strict=True)}
