"""A vocabulary of whole pieces with the marks of an encoder: text is pieces between blanks."""

import numpy as np
import seqio
import tensorflow as tf

MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class WordVocabulary(seqio.Vocabulary):
    """The marks, then these pieces, of which those in "##" go on with a word."""

    pad_id, unk_id, cls_id, sep_id, mask_id = range(5)
    bos_id, eos_id = 2, 3
    special_ids = tuple(range(5))

    def __init__(self, pieces):
        super().__init__()
        self.pieces = (*MARKS, *pieces)
        self._ids = {piece: number for number, piece in enumerate(self.pieces)}
        self.word_starts = np.array([not piece.startswith("##") for piece in self.pieces])

    @property
    def _base_vocab_size(self):
        return len(self.pieces)

    def _encode(self, s):
        return [self._ids.get(piece, self.unk_id) for piece in s.split()]

    def _decode(self, ids):
        return " ".join(self.pieces[number] for number in ids)

    def decode(self, ids):
        return self._decode(ids)

    def _encode_tf(self, s):
        ids = tf.numpy_function(lambda text: np.int32(self._encode(text.decode())), [s], tf.int32)
        ids.set_shape([None])
        return ids

    def _decode_tf(self, ids):
        return tf.numpy_function(lambda tokens: self._decode(tokens).encode(), [ids], tf.string)

    def __eq__(self, other):
        return isinstance(other, WordVocabulary) and self.pieces == other.pieces

    def __hash__(self):
        return hash(self.pieces)
