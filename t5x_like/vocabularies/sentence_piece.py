"""SentencePiece models, and the bytes of UTF-8: T5's vocabularies, LLaMA's and PaLM's.

T5's have sentinels as the last ids; LLaMA's and PaLM's decode every text unchanged.
"""

from collections.abc import Sequence

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from t5x_like.vocabularies.albert_pieces import BLANK, cut
from t5x_like.vocabularies.base import Offsets, Vocabulary
from t5x_like.vocabularies.special_tokens import SpecialTokenVocabulary

PAD, EOS, UNKNOWN = 0, 1, 2
_BORROWED = 100  # without sentinels, at most so many of the last ids stand for spans


class T5Vocabulary(Vocabulary):
    """A vocabulary with T5's three special ids, whose last ids can be sentinels."""

    pad_id, eos_id, unk_id = PAD, EOS, UNKNOWN

    @property
    def sentinels(self) -> int:
        """The number of sentinels, or without sentinels of last ids used as such, as in ByT5."""
        return self.extra_ids or max(0, min(_BORROWED, self.vocab_size - 3))

    def _until_end(self, ids: list[int]) -> list[int]:
        return ids[: ids.index(EOS)] if EOS in ids else ids


class SentencePiece(T5Vocabulary):
    """A SentencePiece model with sentinels (Kudo and Richardson 2018).

    Attributes:
        model: the serialized model, including sentinels.
        tokenizer: the model loaded by the library.

    Args:
        model: the content of the model's file.
        extra_ids: the number of sentinels to add; none are added to a model that ends in sentinels,
            such as mT5's.
    """

    def __init__(self, model: bytes, *, extra_ids: int = 0):
        proto = sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
        user_defined = proto.SentencePiece.USER_DEFINED
        last = [piece.piece for piece in reversed(proto.pieces)]
        sentinels = next(n for n, piece in enumerate([*last, ""]) if piece != _sentinel(n))
        for number in reversed(range(0 if sentinels else extra_ids)):
            proto.pieces.add(piece=_sentinel(number), score=0.0, type=user_defined)
        extra_ids = sentinels or extra_ids
        self.model: bytes = proto.SerializeToString()
        self.tokenizer = sentencepiece.SentencePieceProcessor(model_proto=self.model)
        super().__init__(vocab_size=len(self.tokenizer), contents=self.model, extra_ids=extra_ids)

    def encode(self, text: str) -> list[int]:
        """Tokenize a text; the name of a sentinel at the start of a word becomes the sentinel."""
        return self.tokenizer.EncodeAsIds(text)

    def _encode_with_offsets(self, text: str) -> tuple[list[int], Offsets]:
        return _with_offsets(text, self.tokenizer)

    def _without_special(self, ids: list[int]) -> list[int]:
        return [number for number in ids if UNKNOWN < number < self.vocab_size - self.extra_ids]

    def _decode(self, ids: Sequence[int]) -> str:
        """Return the text; ids out of range are unknown."""
        return self.tokenizer.DecodeIds([i if i < self.vocab_size else UNKNOWN for i in ids])

    def piece(self, token: int) -> str:
        """Return the piece in the model, in which U+2581 is a blank."""
        return self.tokenizer.IdToPiece(token)


def _sentinel(number: int) -> str:
    return f"\u2581<extra_id_{number}>"


def _with_offsets(
    text: str, model: sentencepiece.SentencePieceProcessor
) -> tuple[list[int], Offsets]:
    pieces = list(cut(text, model=model))
    return [number for number, *_ in pieces], [(first, end) for _, first, end in pieces]


class Bytes(T5Vocabulary):
    """T5's three special ids, then the 256 bytes of UTF-8 (Xue et al. 2022, ByT5, section 3.1)."""

    first = 3  # the id of byte 0

    def __init__(self, *, extra_ids: int = 0):
        size = self.first + 256 + extra_ids
        super().__init__(vocab_size=size, contents=b"bytes:%d" % extra_ids, extra_ids=extra_ids)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text's bytes."""
        return [self.first + byte for byte in text.encode()]

    def _encode_with_offsets(self, text: str) -> tuple[list[int], Offsets]:
        ranges = [(n, n + 1) for n, character in enumerate(text) for _ in character.encode()]
        return self.encode(text), ranges

    def _decode(self, ids: Sequence[int]) -> str:
        """Decode the bytes; skip other ids and invalid bytes."""
        values = (number - self.first for number in ids)
        return bytes(value for value in values if 0 <= value < 256).decode(errors="ignore")


LLAMA_SPECIAL_TOKENS = ("<unk>", "<s>", "</s>")


class LosslessSentencePiece(SpecialTokenVocabulary):
    """A SentencePiece model with the ids above (Touvron et al. 2023, section 2.1).

    Attributes:
        model: the serialized model.

    Args:
        model: the content of the model's file.
    """

    def __init__(self, model: bytes):
        self.model = model
        self._model = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = [self._model.IdToPiece(number) for number in range(len(self._model))]
        super().__init__(pieces, special_tokens=LLAMA_SPECIAL_TOKENS, contents=model)

    def encode(self, text: str) -> list[int]:
        """Tokenize a text."""
        return self._model.EncodeAsIds(text)

    def _begins_word(self, piece: str) -> bool:
        return piece.startswith(BLANK)

    def _encode_with_offsets(self, text: str) -> tuple[list[int], Offsets]:
        return _with_offsets(text, self._model)

    def _decode(self, ids: Sequence[int]) -> str:
        """Return the text, with the names of special tokens; ids out of range are unknown."""
        parts: list[str] = []
        run: list[int] = []
        for number in ids:
            if number in self.special_ids or not 0 <= number < len(self.pieces):
                is_special = number in self.special_ids
                name = self.pieces[number] if is_special else LLAMA_SPECIAL_TOKENS[0]
                parts += [self._model.DecodeIds(run), name]
                run = []
            else:
                run.append(number)
        return "".join([*parts, self._model.DecodeIds(run)])
