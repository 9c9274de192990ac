"""Load the vocabulary that a config names: "bytes", or a file or folder of any supported kind."""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import sentencepiece
import tokenizers
from google.protobuf.message import DecodeError

from t5x_like import hub, paths, reading
from t5x_like.names import hint
from t5x_like.paths import Path
from t5x_like.vocabularies import word_bpe
from t5x_like.vocabularies.albert_pieces import AlbertPieces
from t5x_like.vocabularies.base import Vocabulary
from t5x_like.vocabularies.byte_tokens import TOKENIZER_CLASS, byte_tokens
from t5x_like.vocabularies.hugging_face import (
    folder_vocabulary,
    tokenizer_checks,
    tokenizer_class,
    tokenizer_files,
)
from t5x_like.vocabularies.hugging_face.tokenizer_files import TOKENIZER, TokenizerFiles
from t5x_like.vocabularies.marian import SOURCE, TARGET, MarianVocabulary
from t5x_like.vocabularies.sentence_piece import (
    EOS,
    PAD,
    UNKNOWN,
    Bytes,
    LosslessSentencePiece,
    SentencePiece,
)
from t5x_like.vocabularies.special_tokens import ALBERT_SPECIAL_TOKENS
from t5x_like.vocabularies.tokenizer import (
    TokenizerVocabulary,
    as_value_errors,
    byte_bpe,
    wordpiece,
)
from t5x_like.vocabularies.words import WORD_SPECIAL_TOKENS, TokenizedWords, WordVocabulary

BYTES = "bytes"
SENTINELS = 100

_CONFIG = "tokenizer_config.json"
# XLM-R's model: the network's ids differ from its pieces' ids, and are in tokenizer.json.
_OF_XLM_R = "sentencepiece.bpe.model"
# Classes whose SentencePiece models have special tokens that no other class has.
_BY_SPECIAL_TOKENS = {
    "XLNet": {"<cls>", "<sep>", "<mask>", "<eod>"},
    "BigBird": {"[CLS]", "[SEP]", "[MASK]", "<s>", "</s>"},
}
# The files that are looked for in a folder without a .model, in order of preference. A folder of
# ByT5 has only the last.
_NAMES = ("vocab.txt", "vocab.json", "tokenizer.json", _CONFIG)


def load(spec: str | os.PathLike[str], *, sentinels: int = SENTINELS) -> Vocabulary:
    """Load the vocabulary that a config names.

    Args:
        spec: "bytes", the 256 bytes of UTF-8 and T5's three ids (Xue et al. 2022, ByT5), or
            "bytes:N" for N sentinels (ByT5 as published is "bytes:0": its sentinels are the last
            byte ids); or a folder in Hugging Face's format, whose files together define the
            tokenizer (`hugging_face.tokenizer_folder`), or the path of one of its files, which is
            then read as its only vocabulary; or the name of a model of the hub (`hub`); or, if no
            file of the folder names a class, the path of
            - a SentencePiece model (Hugging Face's spiece.model or tokenizer.model): T5's,
              ALBERT's if it has [CLS], [SEP] and [MASK], BigBird's if also <s> and </s>,
              XLNet's if it has <cls>, <sep>, <mask> and <eod>, or LLaMA's if it has <s> and bytes,
            - vocab.txt, or any other .txt: ELMo's whole words if it has <S>, </S> and <UNK>;
              otherwise BERT's WordPiece,
            - vocab.json next to source.spm and target.spm: Marian's,
            - vocab.json next to merges.txt: the byte-level BPE of RoBERTa and GPT-2, or GPT's BPE
              within words if it has pieces that end in "</w>",
            - tokenizer.json, or any other .json, of the library `tokenizers`,
            - tokenizer_config.json of a ByT5, which has no other file,
            - a folder with one of these, looked for in this order; of a Transformer-XL only its
              vocab.txt, since its other files are pickles.
        sentinels: the number of sentinels to add to T5's pieces or to the bytes, unless the spec
            sets it.

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
    path = find(spec)
    try:
        return _of_folder(path) or _of_file(path, spec=spec, sentinels=sentinels)
    except ValueError as error:
        text = str(error)
        begins = text.startswith(f"vocabulary={spec!r}")
        raise ValueError(text if begins else f"vocabulary={spec!r}: {text}") from error


def _of_folder(path: Path) -> Vocabulary | None:
    """Load the vocabulary of a folder whose files name a tokenizer's class; None for others.

    Args:
        path: the folder, or one of its vocabulary files, which then takes precedence.
    """
    is_folder = path.is_dir()
    files = TokenizerFiles(path if is_folder else path.parent, only="" if is_folder else path.name)
    name = tokenizer_class.class_name(files)
    if name is None and files.has(TOKENIZER) and (files.settings or files.special):
        name = tokenizer_class.AS_WRITTEN
    if name is not None and name in _OWN_READERS:
        return _OWN_READERS[name](path if is_folder else path.parent)
    if name is None or not (is_folder or tokenizer_class.reads(name, path.name)):
        return None
    if is_folder and not _has_vocabulary(path, files, name):
        return None  # it has no tokenizer, or another kind of vocabulary
    return folder_vocabulary.load(files, name)


def _has_vocabulary(folder: Path, files: TokenizerFiles, name: str) -> bool:
    """Return whether a folder has a vocabulary of this class, or any with tokenizer settings."""
    models, named = _candidates(folder)
    if files.has(TOKENIZER) or files.has(_OF_XLM_R):
        return True
    candidates = (*models, *named)
    return bool(candidates) and (
        bool(files.settings) or any(tokenizer_class.reads(name, file.name) for file in candidates)
    )


def _of_file(path: Path, *, spec: str, sentinels: int) -> Vocabulary:
    """Load the vocabulary of a file; its name and its pieces decide the kind."""
    if path.is_dir():
        path = _only_file(path, spec=spec)
    endings = (ending for ending in _READERS if path.name.endswith(ending))
    ending = next(endings, None)
    if ending is None:
        return _sentence_piece(path, spec=spec, sentinels=sentinels)
    return _READERS[ending](path)


def find(spec: str) -> Path:
    """Return the folder or file that a spec names, which may be a model of Hugging Face's hub.

    Raises:
        ValueError: it does not exist, or the hub does not give the model.
    """
    if "://" in spec:
        paths.check_bucket("vocabulary", spec)
    path = paths.path(spec)
    if path.exists():
        return path
    absent = f"vocabulary={spec!r} does not exist.{_nearest(path, path.parent)}"
    if path.suffix in (".model", ".json", ".txt"):  # what the command writes
        absent += f"; `python -m t5x_like.vocabulary --output={spec}` trains one (--help)"
    if not hub.names(spec):
        raise ValueError(absent)
    try:
        return hub.folder(spec, weights=False)
    except ValueError as error:
        raise ValueError(f"{absent} {error}") from error


def _only_file(folder: Path, *, spec: str) -> Path:
    """Return the vocabulary file of a folder that does not name a class.

    Raises:
        ValueError: the folder has no such file, or several models.
    """
    models, named = _candidates(folder)
    if len(models) == 1:
        return models[0]
    if named and not models:
        return named[0]
    raise ValueError(
        f"vocabulary={spec!r} is a folder with {len(models)} models.{_nearest(folder, folder)}"
    )


def _candidates(folder: Path) -> tuple[list[Path], list[Path]]:
    models = sorted(folder.glob("*.model")) if folder.is_dir() else []
    models = [model for model in models if model.name != _OF_XLM_R]
    return models, [folder / name for name in _NAMES if (folder / name).exists()]


def _nearest(path: Path, folder: Path) -> str:
    models, named = _candidates(folder)
    return hint(os.fspath(path), [BYTES, *map(os.fspath, (*models, *named))])


def _sentence_piece(path: Path, *, spec: str, sentinels: int) -> Vocabulary:
    if path.name == _OF_XLM_R:
        raise ValueError(
            f"vocabulary={spec!r} has the pieces of XLM-R under other ids than the network's: take "
            "tokenizer.json of the same model."
        )
    model = path.read_bytes()
    try:
        tokenizer = sentencepiece.SentencePieceProcessor(model_proto=model)
    except (DecodeError, RuntimeError) as error:
        raise ValueError(f"vocabulary={spec!r} is not a SentencePiece model.") from error
    pieces = {tokenizer.IdToPiece(number) for number in range(len(tokenizer))}
    for name, special in _BY_SPECIAL_TOKENS.items():
        if special <= pieces:
            return folder_vocabulary.load(TokenizerFiles(path.parent, only=path.name), name)
    if set(ALBERT_SPECIAL_TOKENS[2:]) <= pieces:
        return AlbertPieces(model, settings=_settings(path))
    ids = (tokenizer.pad_id(), tokenizer.eos_id(), tokenizer.unk_id())
    if (tokenizer.bos_id(), *ids) == (1, -1, 2, 0) and tokenizer.IsByte(3):
        return LosslessSentencePiece(model)
    if ids != (PAD, EOS, UNKNOWN):
        raise ValueError(
            f"vocabulary={spec!r} has the ids {ids} for padding, end of sequence and unknown, "
            f"where {(PAD, EOS, UNKNOWN)} are needed (`python -m t5x_like.vocabulary` trains one). "
            "If it is of a published model, take the folder with the model's config.json."
        )
    return SentencePiece(model, extra_ids=sentinels)


def _list(path: Path) -> Vocabulary:
    lines = _lines(path)
    if set(WORD_SPECIAL_TOKENS) <= set(lines):
        return WordVocabulary(lines)
    return wordpiece(lines, settings=_settings(path))


def _pieces_with_ids(path: Path) -> Vocabulary:
    """Load the vocabulary of a vocab.json: Marian's, byte-level BPE, or GPT's BPE within words."""
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
    ids = _json(path)
    settings = tokenizer_files.read_settings(TokenizerFiles(path.parent))
    first = 1 + max((*ids.values(), *settings.added), default=-1)
    added = settings.with_extra(first=first, known=ids)
    source, target = (model.read_bytes() for model in models)
    vocabulary = MarianVocabulary(ids, source=source, target=target, added=added)
    for name, number in settings.named_ids(added).items():
        setattr(vocabulary, name, number)
    return vocabulary


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
    with as_value_errors("is not a tokenizer of the library `tokenizers`"):
        tokenizer_checks.check(_json(path))
        return TokenizerVocabulary(tokenizers.Tokenizer.from_str(_text(path)))


def _byte_tokens(path: Path) -> Vocabulary:
    kind = _json(path).get("tokenizer_class") if path.exists() else TOKENIZER_CLASS
    if kind != TOKENIZER_CLASS:
        raise ValueError(
            f"has tokenizer_class={kind!r}, whose vocabulary is in a file that the folder lacks; "
            f"only {TOKENIZER_CLASS!r} needs none."
        )
    return byte_tokens(tokenizer_files.read_settings(TokenizerFiles(path.parent)))


_READERS: Mapping[str, Callable[[Path], Vocabulary]] = {
    _CONFIG: _byte_tokens,
    ".txt": _list,
    "vocab.json": _pieces_with_ids,
    ".json": _tokenizer,
}


_PICKLES = ("vocab.pkl", "vocab.bin")  # of Transformer-XL's class


def _words_of_folder(folder: Path) -> Vocabulary:
    """Load the words of a Transformer-XL, which transformers saves only as a pickle."""
    path = folder / "vocab.txt"
    if path.exists():
        return TokenizedWords([line.split()[0] for line in _lines(path) if line.strip()])
    pickled = next((name for name in _PICKLES if (folder / name).exists()), "")
    advice = f" Its {pickled} is a pickle, which can run any program when it is read." * bool(
        pickled
    )
    raise ValueError(
        f"has no vocab.txt with the words of its Transformer-XL.{advice} Write vocab.txt from a "
        "source that you trust: a word on each line, in the order of their ids."
    )


_OWN_READERS: Mapping[str, Callable[[Path], Vocabulary]] = {
    "ByT5": lambda folder: _byte_tokens(folder / _CONFIG),
    "Marian": lambda folder: _marian(folder / "vocab.json"),
    "TransfoXL": _words_of_folder,
}


def _settings(path: Path) -> dict[str, Any]:
    """Return the settings in the tokenizer_config.json next to a vocabulary; {} without it."""
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
    """Return the lines of a file; other line separators, such as U+2028, may be pieces."""
    return _text(path).replace("\r\n", "\n").rstrip("\n").split("\n")


def _text(path: Path) -> str:
    name = os.fspath(path)
    return reading.decode(reading.without_mark(path.read_bytes(), name), name)
