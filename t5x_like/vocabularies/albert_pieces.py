"""ALBERT's vocabulary: a SentencePiece model with [CLS], [SEP] and [MASK] over prepared text."""

import dataclasses
import re
import string
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_pb2

from t5x_like.vocabularies.base import Offsets
from t5x_like.vocabularies.special_tokens import (
    ALBERT_SPECIAL_TOKENS,
    SpecialTokenVocabulary,
    lowers_case,
)

BLANK = "\u2581"  # SentencePiece's prefix of a word
# A piece of only these characters may continue a word.
_WITHIN_WORDS = frozenset(string.ascii_letters + string.punctuation) - set("'<=>")


@dataclasses.dataclass(frozen=True)
class AlbertText:
    """ALBERT's text normalization: plain quotes, no accents, lower case (Lan et al. 2020).

    Attributes:
        lower_case: whether to lower-case letters.
        keep_accents: whether to keep accents.
    """

    lower_case: bool = True
    keep_accents: bool = False

    def __call__(self, text: str) -> str:
        """Return the normalized text."""
        text = text.replace("``", '"').replace("''", '"')
        if not self.keep_accents:
            letters = unicodedata.normalize("NFKD", text)
            text = "".join(letter for letter in letters if not unicodedata.combining(letter))
        return text.lower() if self.lower_case else text

    def origins(self, text: str) -> list[tuple[int, int]]:
        """Return for each character of the normalized text the range of the text it comes from."""
        parts = re.finditer("``|''|.", text, re.DOTALL)
        return [part.span() for part in parts for _ in self(part.group())]


class AlbertPieces(SpecialTokenVocabulary):
    """A SentencePiece model with special tokens (Lan et al. 2020).

    A comma after a digit stays with it if there is such a piece, as in Hugging Face's ALBERT; the
    original code splits it off.

    Attributes:
        model: the serialized model.
        prepare: the normalization of a text before the model's.

    Args:
        model: the content of the model's file.
        settings: do_lower_case and keep_accents of tokenizer_config.json.
    """

    def __init__(self, model: bytes, *, settings: Mapping[str, Any]):
        self.model = model
        self._model = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = [self._model.IdToPiece(number) for number in range(len(self._model))]
        self.prepare = AlbertText(
            lower_case=lowers_case(pieces, settings=settings),
            keep_accents=settings.get("keep_accents", False),
        )
        contents = model + repr(self.prepare).encode()
        super().__init__(pieces, special_tokens=ALBERT_SPECIAL_TOKENS, contents=contents)
        names = "|".join(map(re.escape, self.special_tokens))
        self._split = re.compile(f"({names})").split

    def __repr__(self) -> str:
        # Earlier runs have saved this name in the positions of their data.
        return super().__repr__().replace(type(self).__name__, "MarkedSentencePiece")

    def encode(self, text: str) -> list[int]:
        """Tokenize a text."""
        ids: list[int] = []
        for index, part in enumerate(self._split(text)):
            is_special = index % 2
            ids += (
                [self.special_tokens[part]]
                if is_special
                else self._model.EncodeAsIds(self.prepare(part))
            )
        return ids

    def _begins_word(self, piece: str) -> bool:
        return begins_word(piece)

    def _encode_with_offsets(self, text: str) -> tuple[list[int], Offsets]:
        ids: list[int] = []
        offsets: Offsets = []
        start = 0
        for index, part in enumerate(self._split(text)):
            if index % 2:
                ids.append(self.special_tokens[part])
                offsets.append((start, start + len(part)))
            elif part:
                origins = [*self.prepare.origins(part), (len(part), len(part))]
                for number, first, after_last in cut(self.prepare(part), model=self._model):
                    last = max(first, after_last - 1)
                    ids.append(number)
                    offsets.append((start + origins[first][0], start + origins[last][1]))
            start += len(part)
        return ids, offsets

    def _decode(self, ids: Sequence[int]) -> str:
        assert self.unk_id is not None  # for the type checker
        size = len(self.pieces)
        names = {number: name for name, number in self.special_tokens.items()}
        parts: list[str] = []
        run: list[int] = []
        for number in [number if 0 <= number < size else self.unk_id for number in ids]:
            if number in names:
                parts += [self._model.DecodeIds(run), names[number]] if run else [names[number]]
                run = []
            else:
                run.append(number)
        return " ".join([*parts, self._model.DecodeIds(run)] if run else parts)


def begins_word(piece: str) -> bool:
    """Return whether a piece begins a word; only ASCII letters and punctuation can continue one.

    The rule is the same as in ALBERT's code.
    """
    alone = len(piece) == 1 and piece in string.punctuation
    return alone or piece.startswith((BLANK, "<")) or not _WITHIN_WORDS.issuperset(piece)


def cut(
    text: str, *, model: sentencepiece.SentencePieceProcessor
) -> Iterator[tuple[int, int, int]]:
    """Tokenize a text into (id, start, end), a range of characters each."""
    encoded = model.Encode(text, out_type="serialized_proto")
    characters = [index for index, character in enumerate(text) for _ in character.encode()]
    characters.append(len(text))  # indexed by byte, the unit of the model's offsets
    proto = sentencepiece_pb2.SentencePieceText  # type: ignore[attr-defined]  # made at import
    for piece in proto.FromString(encoded).pieces:
        yield piece.id, characters[piece.begin], characters[piece.end]
