"""Adapt a vocabulary to seqio tasks: text to token ids within tf.data."""

import functools
import math
from collections.abc import Sequence

import numpy as np
import seqio
import tensorflow as tf
import tensorflow_text

from t5x_like.vocabularies import Vocabulary
from t5x_like.vocabularies.sentence_piece import Bytes, SentencePiece


class TaskVocabulary(seqio.Vocabulary):
    """A vocabulary for `seqio.Feature`; equal if the wrapped vocabularies are.

    Attributes:
        plain: the wrapped vocabulary.
    """

    bos_id = property(lambda self: self.plain.bos_id)
    eos_id = property(lambda self: self.plain.eos_id)
    pad_id = property(lambda self: self.plain.pad_id)
    unk_id = property(lambda self: self.plain.unk_id)

    def __init__(self, plain: Vocabulary):
        super().__init__(extra_ids=plain.extra_ids)
        self.plain = plain

    def decode(self, ids: Sequence[int]) -> str:
        """Detokenize ids [L] with the wrapped vocabulary."""
        return self.plain.decode(ids)

    def decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        """Detokenize ids [..., L], inside or outside of tf.data."""
        return self._decode_tf(tf.convert_to_tensor(ids))

    @property
    def _base_vocab_size(self) -> int:
        return self.plain.vocab_size - self.plain.extra_ids

    def _encode(self, s: str) -> Sequence[int]:
        return self.plain.encode(s)

    def _decode(self, ids: Sequence[int]) -> str:
        return self.plain.decode(ids)

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        return encode_tf(self.plain, s)

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        def decode(rows: np.ndarray) -> np.ndarray:
            *shape, length = rows.shape
            flat = rows.reshape(math.prod(shape), length)
            texts = [self.plain.decode(row).encode() for row in flat]
            return np.array(texts, object).reshape(shape)

        texts = tf.numpy_function(decode, [ids], tf.string, stateful=False)
        texts.set_shape(ids.shape[:-1])
        return texts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskVocabulary) and self.plain == other.plain

    def __hash__(self) -> int:
        return hash(self.plain)

    def __str__(self) -> str:
        return str(self.plain)


_SAMPLE = "The cat's 3.14 naïve words: ÄÖÜ, 日本, \U0001f600  two blanks\tand \u00bd."


def check_same_tokens(task: seqio.Task, vocabulary: Vocabulary) -> None:
    """Check that the features of a task have the tokens of a vocabulary.

    Raises:
        ValueError: a feature has another number of tokens or another end token, or tokenizes a
            sample of text in another way.
    """
    for name, feature in task.output_features.items():
        theirs = feature.vocabulary
        ours = vocabulary.targets if name == "targets" else vocabulary
        if isinstance(theirs, TaskVocabulary | seqio.PassThroughVocabulary):
            continue  # made of a vocabulary of this package, or of no text
        for what, their_value, our_value in (
            ("vocab_size", theirs.vocab_size, ours.vocab_size),
            ("eos_id", theirs.eos_id, ours.eos_id),
            ("tokens of a text", list(theirs.encode(_SAMPLE)), list(ours.encode(_SAMPLE))),
        ):
            if their_value != our_value:
                raise ValueError(
                    f"data.vocabulary is not the vocabulary of feature {name!r} of task "
                    f"{task.name!r}: its {what} would be {our_value}, and is {their_value} there"
                )


@functools.singledispatch
def encode_tf(vocabulary: Vocabulary, text: tf.Tensor) -> tf.Tensor:
    """Tokenize a scalar string into int32 [L], with a Python function within the graph."""

    def encode(text: bytes, digest: bytes) -> np.ndarray:
        del digest
        return np.array(vocabulary.encode(text.decode("utf-8", errors="replace")), np.int32)

    # The fingerprint of a data position is a hash of operations and constants, so the digest is
    # all that makes it differ between vocabularies.
    constant = tf.constant(vocabulary.digest)
    ids = tf.numpy_function(encode, [text, constant], tf.int32, stateful=False)
    ids.set_shape([None])
    return ids


@encode_tf.register
def _sentence_piece(vocabulary: SentencePiece, text: tf.Tensor) -> tf.Tensor:
    return tensorflow_text.SentencepieceTokenizer(model=vocabulary.model).tokenize(text)


@encode_tf.register
def _bytes(vocabulary: Bytes, text: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int32) + vocabulary.first
