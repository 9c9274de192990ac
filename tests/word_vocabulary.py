"""A vocabulary of whole pieces with BERT's special tokens: text is pieces between blanks."""

from t5x_like.vocabularies import SpecialTokenVocabulary
from t5x_like.vocabularies.special_tokens import BERT_SPECIAL_TOKENS


class WordVocabulary(SpecialTokenVocabulary):
    """The special tokens, then these pieces; those in "##" continue a word."""

    def __init__(self, pieces):
        pieces = (*BERT_SPECIAL_TOKENS, *pieces)
        contents = "\n".join(pieces).encode()
        super().__init__(pieces, special_tokens=BERT_SPECIAL_TOKENS, contents=contents)
        self._ids = {piece: number for number, piece in enumerate(self.pieces)}

    def encode(self, text):
        return [self._ids.get(piece, self.unk_id) for piece in text.split()]

    def _decode(self, ids):
        return " ".join(self.pieces[number] for number in ids)

    def _encode_with_offsets(self, text):
        raise NotImplementedError

    def _begins_word(self, piece):
        return not piece.startswith("##")
