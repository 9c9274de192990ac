"""Make a tokenizer of the library `tokenizers` that gives the same ids as a SentencePiece model.

The classes of transformers have rules of their own for such models (T5's splits at every blank,
LLaMA's puts no blank before a text that begins with a blank), so their ids can differ
from the ids that a network was trained with. These tokenizers follow SentencePiece (Kudo and
Richardson 2018).
"""

import functools
import re
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from t5x_like.vocabularies.hugging_face import sentence_pieces
from t5x_like.vocabularies.hugging_face.sentence_pieces import (
    CONTROL,
    NORMAL,
    OF_USER,
    UNIGRAM,
    UNKNOWN,
)

_BLANK = "\u2581"
_NEVER = -10_000.0  # the score of a piece that no text may be split into
_PER_BYTE = 0.1


def make(
    proto: Any, *, sentinels: int = 0, prepare: Sequence[normalizers.Normalizer] = ()
) -> tokenizers.Tokenizer:
    """Make the tokenizer.

    Args:
        proto: the ModelProto.
        sentinels: the number of last pieces that are sentinels, such as "\u2581<extra_id_0>".
        prepare: normalizers for a text, before the normalization of the model.

    Raises:
        ValueError: the model has a setting that the library lacks.
    """
    names = [
        piece.piece.removeprefix(_BLANK)
        for piece in proto.pieces[-sentinels or len(proto.pieces) :]
    ]
    if sentinels:
        proto = type(proto).FromString(proto.SerializeToString())
        del proto.pieces[-sentinels:]
    spec = proto.normalizer_spec
    if proto.trainer_spec.treat_whitespace_as_suffix or not spec.escape_whitespaces:
        raise ValueError("its SentencePiece model puts blanks elsewhere than before words.")
    tokenizer = tokenizers.Tokenizer(_model(proto))
    tokenizer.normalizer = normalizers.Sequence([*prepare, *_normalizers(spec)])
    of_user = [piece.piece for piece in proto.pieces if piece.type == OF_USER]
    if of_user and proto.trainer_spec.model_type != UNIGRAM:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(_any_of(of_user), behavior="isolated")
    tokenizer.decoder = _decoder(proto)
    special = [piece.piece for piece in proto.pieces if piece.type in (UNKNOWN, CONTROL)]
    tokenizer.add_special_tokens(
        [AddedToken(name, normalized=False, special=True) for name in special]
    )
    # Found in the normalized text, in which a blank is before each word, as in SentencePiece.
    tokenizer.add_special_tokens(
        [AddedToken(name, normalized=True, special=True) for name in names]
    )
    return tokenizer


def _model(proto: Any) -> Any:
    """Return the model of BPE or Unigram with the pieces that a text is split into."""
    spec, pieces = proto.trainer_spec, proto.pieces
    if spec.model_type != UNIGRAM:
        has_user_pieces = any(piece.type == OF_USER for piece in pieces)
        names = [piece.piece for piece in pieces]
        return sentence_pieces.bpe(proto, names, has_user_pieces=has_user_pieces)
    scores = []
    for piece in pieces:
        score = piece.score if piece.type == NORMAL else _NEVER
        if piece.type == OF_USER:  # the score that SentencePiece 0.2.3 gives it
            score = _PER_BYTE * (len(piece.piece.encode()) - 1)
        scores.append((piece.piece, score))
    return models.Unigram(scores, unk_id=spec.unk_id, byte_fallback=spec.byte_fallback)


def _normalizers(spec: Any) -> list[normalizers.Normalizer]:
    parts: list[normalizers.Normalizer] = []
    if spec.precompiled_charsmap:
        # The library looks up a letter and its marks as one, and misses pairs of letters, as
        # in Korean; SentencePiece's tables of NFKC give the same for composed text.
        parts += [normalizers.NFC()] if "nfkc" in spec.name else []
        parts.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        parts.append(normalizers.Replace(tokenizers.Regex(r"\A +| +\z"), ""))
        parts.append(normalizers.Replace(tokenizers.Regex(" {2,}"), " "))
    if spec.add_dummy_prefix:
        parts.append(normalizers.Prepend(_BLANK))
    return [*parts, normalizers.Replace(" ", _BLANK)]


def _decoder(proto: Any) -> decoders.Decoder:
    parts: list[decoders.Decoder] = [decoders.Replace(_BLANK, " ")]
    if proto.trainer_spec.byte_fallback:
        parts.append(decoders.ByteFallback())
    parts.append(decoders.Fuse())
    if proto.normalizer_spec.add_dummy_prefix:
        parts.append(decoders.Strip(content=" ", left=1))
    return decoders.Sequence(parts)


def _any_of(texts: Sequence[str]) -> tokenizers.Regex:
    return tokenizers.Regex("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


def plain_letters(*, keep_accents: bool, lower_case: bool) -> list[normalizers.Normalizer]:
    """Return normalizers that change a text like `albert_pieces.AlbertText`."""
    parts: list[normalizers.Normalizer] = [
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
    ]
    if not keep_accents:
        # StripAccents would also remove vowel signs, as of Hindi, which Python does not.
        parts += [normalizers.NFKD(), normalizers.Replace(tokenizers.Regex(_combining()), "")]
    if lower_case:
        # Python lower-cases a sigma at the end of a word differently.
        last = tokenizers.Regex(r"(?<=\p{L})\x{3A3}(?!\p{L})")
        parts += [normalizers.Replace(last, "\u03c2"), normalizers.Lowercase()]
    return parts


@functools.cache
def _combining() -> str:
    """Return a regular expression of the characters that are combined with the one before."""
    ranges: list[list[int]] = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.combining(chr(code)):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "[" + "".join(rf"\x{{{first:X}}}-\x{{{last:X}}}" for first, last in ranges) + "]"
