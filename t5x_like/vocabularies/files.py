"""Vocabularies as a config names them: "bytes", or a file of any of the kinds of this folder."""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import sentencepiece
import tokenizers
from google.protobuf.message import DecodeError

from t5x_like import paths, reading
from t5x_like.names import hint
from t5x_like.paths import Path
from t5x_like.vocabularies import word_bpe
from t5x_like.vocabularies.albert_pieces import AlbertPieces
from t5x_like.vocabularies.base import Vocabulary
from t5x_like.vocabularies.byte_tokens import byte_tokens
from t5x_like.vocabularies.lossless import LosslessSentencePiece
from t5x_like.vocabularies.marian import SOURCE, TARGET, MarianVocabulary
from t5x_like.vocabularies.sentence_piece import EOS, PAD, UNKNOWN, Bytes, SentencePiece
from t5x_like.vocabularies.special_tokens import ALBERT_SPECIAL_TOKENS
from t5x_like.vocabularies.tokenizer import TokenizerVocabulary, byte_bpe, wordpiece
from t5x_like.vocabularies.words import WORD_SPECIAL_TOKENS, WordVocabulary

BYTES = "bytes"
SENTINELS = 100

_CONFIG = "tokenizer_config.json"
# Of XLM-R, whose ids are not those of this model's pieces: tokenizer.json has them.
_OF_XLM_R = "sentencepiece.bpe.model"
# The files that are looked for in a folder without a .model, the preferred one first. The last is
# all that a folder of ByT5 has.
_NAMES = ("vocab.txt", "vocab.json", "tokenizer.json", _CONFIG)


def load(spec: str | os.PathLike[str], *, sentinels: int = SENTINELS) -> Vocabulary:
    """Load the vocabulary that a config names.

    Args:
        spec: "bytes", the 256 bytes of UTF-8 and T5's three ids (Xue et al. 2022, ByT5), or
            "bytes:N" for N sentinels (ByT5 as published is "bytes:0": its sentinels are the last
            byte ids); or the path of
            - a SentencePiece model (Hugging Face's spiece.model or tokenizer.model): T5's,
              ALBERT's if it has [CLS], [SEP] and [MASK], or LLaMA's if it has <s>, and bytes,
            - vocab.txt, or any other .txt: whole words, as of ELMo, if it has <S>, </S> and
              <UNK>; else BERT's WordPiece,
            - vocab.json beside source.spm and target.spm: Marian's,
            - vocab.json beside merges.txt: the byte-level BPE of RoBERTa and GPT-2, or GPT's BPE
              within words if it has pieces that end in "</w>",
            - tokenizer.json, or any other .json, of the library `tokenizers`,
            - tokenizer_config.json of a ByT5, which has no other file,
            - a folder with one of these, looked for in this order.
        sentinels: the number that is added to T5's pieces or to the bytes, unless the spec sets it.

    Raises:
        ValueError: the file does not exist (the message names the nearest), its content does not
            have the format of its name, or a SentencePiece model has other ids for padding, end of
            sequence and unknown.
    """
    spec = os.fspath(spec)
    if not spec:
        raise ValueError("data.vocabulary is not set: name a file, a folder, or bytes")
    name, colon, number = spec.partition(":")
    if name == BYTES:
        if colon and not number.isdecimal():
            raise ValueError(f"vocabulary={spec!r}: set bytes, or bytes:100 for 100 sentinels.")
        return Bytes(extra_ids=int(number) if colon else sentinels)
    path = _find(spec)
    endings = (ending for ending in _READERS if path.name.endswith(ending))
    ending = next(endings, None)
    if ending is None:
        return _sentence_piece(path, spec=spec, sentinels=sentinels)
    try:
        return _READERS[ending](path)
    except ValueError as error:
        raise ValueError(f"vocabulary={spec!r}: {error}") from error


def _find(spec: str) -> Path:
    """The path of the file that a spec names."""
    if "://" in spec:
        paths.check_bucket("vocabulary", spec)
    path = paths.path(spec)
    is_folder = path.is_dir()
    if not is_folder and path.exists():
        return path
    folder = path if is_folder else path.parent
    models = sorted(folder.glob("*.model")) if folder.is_dir() else []
    models = [model for model in models if model.name != _OF_XLM_R]
    named = [folder / name for name in _NAMES if (folder / name).exists()]
    if is_folder and len(models) == 1:
        return models[0]
    if is_folder and named and not models:
        return named[0]
    problem = f"is a folder with {len(models)} models" if is_folder else "does not exist"
    known = [BYTES, *map(os.fspath, (*models, *named))]
    raise ValueError(f"vocabulary={spec!r} {problem}.{hint(os.fspath(path), known)}")


def _sentence_piece(path: Path, *, spec: str, sentinels: int) -> Vocabulary:
    if path.name == _OF_XLM_R:
        raise ValueError(
            f"vocabulary={spec!r} has the pieces of XLM-R under other ids than the network's: take "
            "tokenizer.json of the same model."
        )
    if str(_settings(path).get("tokenizer_class")).startswith("Pegasus"):
        raise ValueError(
            f"vocabulary={spec!r} has the pieces of Pegasus under other ids than the network's: "
            "take tokenizer.json of the same model."
        )
    model = path.read_bytes()
    try:
        tokenizer = sentencepiece.SentencePieceProcessor(model_proto=model)
    except (DecodeError, RuntimeError) as error:
        raise ValueError(f"vocabulary={spec!r} is not a SentencePiece model.") from error
    pieces = {tokenizer.IdToPiece(number) for number in range(len(tokenizer))}
    if set(ALBERT_SPECIAL_TOKENS[2:]) <= pieces:
        return AlbertPieces(model, settings=_settings(path))
    ids = (tokenizer.pad_id(), tokenizer.eos_id(), tokenizer.unk_id())
    if (tokenizer.bos_id(), *ids) == (1, -1, 2, 0) and tokenizer.IsByte(3):
        return LosslessSentencePiece(model)
    if ids != (PAD, EOS, UNKNOWN):
        raise ValueError(
            f"vocabulary={spec!r} has the ids {ids} for padding, end of sequence and unknown, "
            f"where {(PAD, EOS, UNKNOWN)} are needed (`python -m t5x_like.vocabulary` trains one)."
        )
    return SentencePiece(model, extra_ids=sentinels)


def _list(path: Path) -> Vocabulary:
    lines = _lines(path)
    if set(WORD_SPECIAL_TOKENS) <= set(lines):
        return WordVocabulary(lines)
    return wordpiece(lines, settings=_settings(path))


def _pieces_with_ids(path: Path) -> Vocabulary:
    """The vocabulary of a vocab.json: Marian's, or byte-level or word-level BPE."""
    is_marian = str(_settings(path).get("tokenizer_class")).startswith("Marian")
    if is_marian or (path.parent / SOURCE).exists():
        return _marian(path)
    return _bpe(path)


def _marian(path: Path) -> Vocabulary:
    models = [path.parent / name for name in (SOURCE, TARGET)]
    if missing := [os.fspath(model) for model in models if not model.exists()]:
        raise ValueError(f"is of a Marian and needs the file {missing[0]!r} beside it.")
    if _settings(path).get("separate_vocabs"):
        raise ValueError("has a vocabulary for each language, which is not supported.")
    source, target = (model.read_bytes() for model in models)
    return MarianVocabulary(_json(path), source=source, target=target)


def _bpe(path: Path) -> Vocabulary:
    merges_path = path.parent / "merges.txt"
    if not merges_path.exists():
        raise ValueError(f"it needs the file {os.fspath(merges_path)!r} beside it.")
    lines = [line for line in _lines(merges_path) if not line.startswith("#version")]
    merges = [(first, second) for first, _, second in (line.partition(" ") for line in lines)]
    ids = _json(path)
    if any(piece.endswith(word_bpe.ENDS_WORD) for piece in ids):
        return word_bpe.WordBpe(ids, merges)
    return byte_bpe(ids, merges, settings=_settings(path))


def _tokenizer(path: Path) -> Vocabulary:
    try:
        return TokenizerVocabulary(tokenizers.Tokenizer.from_str(_text(path)))
    except Exception as error:  # the library raises no narrower class
        raise ValueError(f"is not a tokenizer of the library `tokenizers`: {error}.") from error


def _byte_tokens(path: Path) -> Vocabulary:
    return byte_tokens(_json(path))


_READERS: Mapping[str, Callable[[Path], Vocabulary]] = {
    _CONFIG: _byte_tokens,
    ".txt": _list,
    "vocab.json": _pieces_with_ids,
    ".json": _tokenizer,
}


def _settings(path: Path) -> dict[str, Any]:
    """The settings of the tokenizer_config.json beside a vocabulary; none without that file."""
    config = path.parent / _CONFIG
    return _json(config) if config.exists() else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_text(path))
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)!r} is not valid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{os.fspath(path)!r} is not a JSON object.")
    return content


def _lines(path: Path) -> list[str]:
    """The lines of a file; other line separators, such as U+2028, may be pieces."""
    return _text(path).replace("\r\n", "\n").rstrip("\n").split("\n")


def _text(path: Path) -> str:
    name = os.fspath(path)
    return reading.decode(reading.without_mark(path.read_bytes(), name), name)
