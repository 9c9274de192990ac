"""A vocabulary of plain numbers: the text "7 8" is the tokens 7 and 8."""

from t5x_like.vocabularies.sentence_piece import T5Vocabulary


class NumberVocabulary(T5Vocabulary):
    """Tokens are numbers below `size`; the last are sentinels."""

    def __init__(self, size, *, eos=True):
        super().__init__(vocab_size=size, contents=b"%d %d" % (size, eos))
        self.eos_id = self.eos_id if eos else None

    def encode(self, text):
        return [int(number) for number in text.split()]

    def _until_end(self, ids):
        return ids

    def _decode(self, ids):
        return " ".join(map(str, ids))
