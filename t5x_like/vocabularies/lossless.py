"""LLaMA's and PaLM's vocabularies: SentencePiece models that decode every text unchanged.

Text is not normalized, blanks and single digits are pieces, and characters without a piece are
encoded as bytes. The ids are 0 for unknown, 1 for `<s>`, which begins a text, 2 for `</s>`, which
ends it, then 256 bytes; there is no padding token, and batches are padded with 0. The model puts a
blank before a text so that its first word is like any other, and decoding removes it. (Only U+2581
is decoded as a blank: SentencePiece writes blanks as U+2581.)

The name of a special token within a text is plain text: "<s>" is also an HTML tag. (In a Hugging
Face folder that names its tokenizer's class, it is the special token, see `hugging_face`.)
"""

from collections.abc import Sequence

import sentencepiece

from t5x_like.vocabularies.albert_pieces import BLANK, cut
from t5x_like.vocabularies.base import Offsets
from t5x_like.vocabularies.special_tokens import SpecialTokenVocabulary

LLAMA_SPECIAL_TOKENS = ("<unk>", "<s>", "</s>")


class LosslessSentencePiece(SpecialTokenVocabulary):
    """A SentencePiece model with the ids above (Touvron et al. 2023, section 2.1).

    Args:
        model: the content of the model's file.
    """

    def __init__(self, model: bytes):
        self._model = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = [self._model.IdToPiece(number) for number in range(len(self._model))]
        super().__init__(pieces, special_tokens=LLAMA_SPECIAL_TOKENS, contents=model)

    def encode(self, text: str) -> list[int]:
        """Tokenize a text."""
        return self._model.EncodeAsIds(text)

    def _begins_word(self, piece: str) -> bool:
        return piece.startswith(BLANK)

    def _encode_with_offsets(self, text: str) -> tuple[list[int], Offsets]:
        pieces = list(cut(text, model=self._model))
        return [one for one, *_ in pieces], [(first, end) for _, first, end in pieces]

    def _decode(self, ids: Sequence[int]) -> str:
        """Return the text, with the names of special tokens; ids out of range are unknown."""
        parts: list[str] = []
        run: list[int] = []
        for one in ids:
            if one in self.special_ids or not 0 <= one < len(self.pieces):
                is_special = one in self.special_ids
                name = self.pieces[one] if is_special else LLAMA_SPECIAL_TOKENS[0]
                parts += [self._model.DecodeIds(run), name]
                run = []
            else:
                run.append(one)
        return "".join([*parts, self._model.DecodeIds(run)])
