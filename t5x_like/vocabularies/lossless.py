"""LLaMA's and PaLM's vocabularies: SentencePiece models that give a text back as it was.

Nothing is normalized, blanks are pieces, each digit is one, and what has no piece is spelled in
bytes. The ids are 0 unknown, 1 `<s>`, which begins a text, 2 `</s>`, which ends one, then 256
bytes; there is no padding, for which batches have 0. The blank that the model puts before a text,
so that its first word is as any other, is taken off when it is decoded. (Only U+2581 comes back as
a blank: it is how SentencePiece writes one.)

The names of marks within a text are no marks: "<s>" is also a tag of HTML. (Hugging Face's
tokenizer reads them as marks.)
"""

from collections.abc import Sequence

import sentencepiece

from t5x_like.vocabularies.special_tokens import MarkedVocabulary, cut

MARKS = ("<unk>", "<s>", "</s>")
_BLANK = "\u2581"  # what SentencePiece puts before a word


class LosslessSentencePiece(MarkedVocabulary):
    """The vocabulary of a SentencePiece model with the ids above.

    Args:
        model: the content of its file.
    """

    def __init__(self, model: bytes):
        self._model = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = [self._model.IdToPiece(number) for number in range(len(self._model))]
        super().__init__(pieces, marks=MARKS, contents=model)

    def _begins_word(self, piece: str) -> bool:
        return piece.startswith(_BLANK)

    def _encode(self, s: str) -> list[int]:
        return self._model.EncodeAsIds(s)

    def _encode_with_offsets(self, s: str) -> tuple[list[int], list[tuple[int, int]]]:
        pieces = list(cut(s, model=self._model))
        return [one for one, *_ in pieces], [(first, end) for _, first, end in pieces]

    def _decode(self, ids: Sequence[int]) -> str:
        """The text, with the names of marks, and of ids that are none as unknown."""
        parts: list[str] = []
        run: list[int] = []
        for one in ids:
            if one in self.special_ids or not 0 <= one < len(self.pieces):
                name = self.pieces[one] if one in self.special_ids else MARKS[0]
                parts += [self._model.DecodeIds(run), name]
                run = []
            else:
                run.append(one)
        return "".join([*parts, self._model.DecodeIds(run)])
