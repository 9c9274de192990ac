"""Split documents into sentences and tokenize them, the first step of the encoders' objectives."""

import re

import numpy as np
import tensorflow as tf

from t5x_like.preprocessing.objectives.running_text.lengths import OutputFeatures
from t5x_like.vocabularies import Vocabulary

# A full stop, question or exclamation mark, optionally with a closing quote or bracket, then
# whitespace and the beginning of a sentence: any letter or digit except a to z, optionally after an
# opening quote or bracket.
_BREAK = re.compile(
    r"""\s*\n\s*|(?:(?<=[.!?])|(?<=[.!?]["'\u201d\u2019)\]]))\s+(?=["'\u201c\u2018(\[]?[^\W_a-z])"""
)


def split(text: str) -> list[str]:
    """Return the sentences of a text, none of them empty, without surrounding whitespace.

    They end at line breaks and at the punctuation of `_BREAK`, which splits "Dr. Who": for
    BERT's purposes a sentence is any run of text (Devlin et al. 2019, section 3).
    """
    return [sentence for sentence in _BREAK.split(text.strip()) if sentence]


def tokenize(
    dataset: tf.data.Dataset, output_features: OutputFeatures, *, between: str = ""
) -> tf.data.Dataset:
    """Tokenize {"text": string or ids} to {"tokens": int32 [L], "sentence_lengths": int32 [S]}.

    Each sentence is tokenized separately by the vocabulary of "inputs", without special tokens. A
    text of token ids is one sentence, unless it comes with "sentence_lengths". Other features are
    dropped.

    Args:
        between: inserted before every sentence except the first: a space if the model generates
            text, since tokens of byte-level BPE include spaces.

    Raises:
        ValueError: the examples have no "text".
    """
    if "text" not in dataset.element_spec:
        raise ValueError(
            'a pretraining objective reads examples with a feature "text", this dataset has '
            f"{sorted(dataset.element_spec)}"
        )
    if dataset.element_spec["text"].dtype.is_integer:
        return dataset.map(_given, num_parallel_calls=tf.data.AUTOTUNE)
    vocabulary = output_features["inputs"].vocabulary.plain

    def encode(text: bytes, _: bytes) -> tuple[np.ndarray, np.ndarray]:
        return _encode(text.decode("utf-8", errors="replace"), vocabulary, between)

    def tokenized(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        arguments = [example["text"], tf.constant(str(vocabulary) + between)]
        tokens, lengths = tf.numpy_function(encode, arguments, [tf.int32] * 2, stateful=False)
        tokens.set_shape([None])
        lengths.set_shape([None])
        return {"tokens": tokens, "sentence_lengths": lengths}

    return dataset.map(tokenized, num_parallel_calls=tf.data.AUTOTUNE)


def _encode(text: str, vocabulary: Vocabulary, between: str) -> tuple[np.ndarray, np.ndarray]:
    found = split(text)
    sentences = [*found[:1], *(between + sentence for sentence in found[1:])]
    encoded = [vocabulary.encode(sentence) for sentence in sentences]
    lengths = np.array([len(tokens) for tokens in encoded], np.int32)
    return np.array([token for tokens in encoded for token in tokens], np.int32), lengths


def _given(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    tokens = tf.cast(example["text"], tf.int32)
    lengths = example.get("sentence_lengths", tf.size(tokens)[None])
    return {"tokens": tokens, "sentence_lengths": tf.cast(lengths, tf.int32)}
