"""Convert a SentencePiece model to pieces of the library `tokenizers`, like transformers."""

import re
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from t5x_like.vocabularies.hugging_face.tokenizer_recipes import Pieces

_BLANK = "\u2581"
NORMAL, UNKNOWN, CONTROL, OF_USER = 1, 2, 3, 4  # types of pieces in a ModelProto
UNIGRAM = 1  # a model_type in a ModelProto


def pieces(proto: Any, *, model: str) -> Pieces:
    """Return the pieces of a model, for a class whose tokenizers are of the kind `model`."""
    tokens = [
        AddedToken(piece.piece, normalized=False, special=piece.type == CONTROL)
        for piece in proto.pieces
        if piece.type in (CONTROL, OF_USER)
    ]
    charsmap = proto.normalizer_spec.precompiled_charsmap
    if model == "Unigram":
        scores = [(piece.piece, piece.score) for piece in proto.pieces]
        unknown = proto.trainer_spec.unk_id
        return Pieces(scores, charsmap=charsmap, unknown=unknown, tokens=tokens)
    ids = {piece.piece: number for number, piece in enumerate(proto.pieces)}
    return Pieces(ids, merges=_merges_by_id(ids), charsmap=charsmap, tokens=tokens)


def _merges_by_id(ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return every pair of pieces that forms a piece, in the order of that piece's id."""
    merges = [
        (number, piece[:cut], piece[cut:])
        for piece, number in ids.items()
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    merges.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])))
    return [(first, second) for _, first, second in merges]


def as_written(
    proto: Any, *, renamed: Mapping[int, str], legacy: bool
) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """Make a tokenizer that splits text like SentencePiece; return its special tokens by name, too.

    Args:
        renamed: {id: name} of pieces that the folder's added tokens rename.
        legacy: whether a blank is put before every part of a text between added tokens, rather than
            only before the first.
    """
    names = [piece.piece for piece in proto.pieces]
    unchanged = {name for number, name in enumerate(names) if number not in renamed}
    names = [
        renamed[number] if number in renamed and renamed[number] not in unchanged else name
        for number, name in enumerate(names)
    ]
    of_user = [
        name for name, piece in zip(names, proto.pieces, strict=True) if piece.type == OF_USER
    ]
    tokenizer = tokenizers.Tokenizer(_model(proto, names, has_user_pieces=bool(of_user)))
    tokenizer.normalizer = _normalizer(proto.normalizer_spec, legacy=legacy)
    parts: list[pre_tokenizers.PreTokenizer] = []
    if proto.normalizer_spec.add_dummy_prefix:
        scheme = "always" if legacy else "first"
        parts.append(pre_tokenizers.Metaspace(_BLANK, prepend_scheme=scheme, split=False))
    if of_user:
        longest_first = sorted(of_user, key=len, reverse=True)
        pattern = tokenizers.Regex("|".join(map(re.escape, longest_first)))
        parts.append(pre_tokenizers.Split(pattern, behavior="isolated"))
    if parts:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = _decoder(proto)
    spec = proto.trainer_spec
    special = {
        "bos_token": (spec.bos_id, spec.bos_piece or "<s>"),
        "eos_token": (spec.eos_id, spec.eos_piece or "</s>"),
        "unk_token": (spec.unk_id, spec.unk_piece or "<unk>"),
    }
    return tokenizer, {name: text for name, (number, text) in special.items() if number >= 0}


def _model(proto: Any, names: list[str], *, has_user_pieces: bool) -> Any:
    spec = proto.trainer_spec
    if spec.model_type == UNIGRAM:
        scores = [(name, piece.score) for name, piece in zip(names, proto.pieces, strict=True)]
        return models.Unigram(scores, unk_id=spec.unk_id, byte_fallback=spec.byte_fallback)
    return bpe(proto, names, has_user_pieces=has_user_pieces)


def bpe(proto: Any, names: list[str], *, has_user_pieces: bool) -> models.BPE:
    """Return the BPE model of the library `tokenizers` with the pieces of a SentencePiece model.

    Args:
        names: the texts of the pieces.
        has_user_pieces: whether a text that is a piece is never merged from others.
    """
    spec = proto.trainer_spec
    return models.BPE(
        {name: number for number, name in enumerate(names)},
        _merges_by_score(proto, names),
        unk_token=spec.unk_piece,
        fuse_unk=True,
        byte_fallback=spec.byte_fallback,
        ignore_merges=has_user_pieces,
    )


def _merges_by_score(proto: Any, names: list[str]) -> list[tuple[str, str]]:
    """Return every pair of normal pieces that forms a normal piece, the likeliest piece first."""
    normal = {
        name: (-piece.score, number)
        for number, (name, piece) in enumerate(zip(names, proto.pieces, strict=True))
        if piece.type == NORMAL
    }
    merges = [
        (*rank, name[:cut], name[cut:])
        for name, rank in normal.items()
        for cut in range(1, len(name))
        if name[:cut] in normal and name[cut:] in normal
    ]
    return [(first, second) for *_, first, second in sorted(merges)]


def _normalizer(spec: Any, *, legacy: bool) -> normalizers.Normalizer:
    parts: list[normalizers.Normalizer] = []
    if spec.precompiled_charsmap:
        parts.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        parts.append(normalizers.Replace(tokenizers.Regex(r"\A +| +\z"), ""))
        parts.append(normalizers.Replace(tokenizers.Regex(" {2,}"), " "))
    if spec.escape_whitespaces:
        parts.append(normalizers.Replace(" ", _BLANK))
    if spec.add_dummy_prefix and legacy:
        # Metaspace puts no blank before a text that begins with a blank; SentencePiece does.
        parts.append(normalizers.Replace(tokenizers.Regex(rf"\A{_BLANK}"), _BLANK * 2))
    return normalizers.Sequence(parts)


def _decoder(proto: Any) -> decoders.Decoder:
    parts: list[decoders.Decoder] = [decoders.Replace(_BLANK, " ")]
    if proto.trainer_spec.byte_fallback:
        parts.append(decoders.ByteFallback())
    if proto.normalizer_spec.add_dummy_prefix:
        parts += [decoders.Fuse(), decoders.Strip(content=" ", left=1)]
    elif proto.trainer_spec.byte_fallback:
        parts.append(decoders.Fuse())
    return decoders.Sequence(parts)
