"""Vocabularies, as a config names them: files of any of the lineage's kinds, or bytes.

T5's SentencePiece has the ids 0 padding, 1 end of sequence, 2 unknown, then the pieces. The
sentinels of span corruption are the last ids, counted down: `<extra_id_0>` is `vocab_size - 1`.
Vocabularies with [CLS], [SEP] and [MASK] are those of marked_vocabularies.py; they have no
sentinels. vocabulary_training.py makes the kinds that can be trained.
"""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import sentencepiece
import seqio
import tensorflow as tf
import tokenizers
from google.protobuf.message import DecodeError

from t5x_like.names import hint
from t5x_like.vocabularies import special_tokens as marked
from t5x_like.vocabularies import word_bpe
from t5x_like.vocabularies.lossless import LosslessSentencePiece

BYTES = "bytes"
SENTINELS = 100
PAD, EOS, UNKNOWN = 0, 1, 2

_CONFIG = "tokenizer_config.json"
# What a folder may hold beside or in place of a .model, the one to be preferred first.
_NAMES = ("vocab.txt", "vocab.json", "tokenizer.json")


def load(spec: str | os.PathLike[str], *, sentinels: int = SENTINELS) -> seqio.Vocabulary:
    """Returns the vocabulary that a config names.

    Args:
        spec: "bytes", the 256 bytes of UTF-8 and T5's three ids (Xue et al. 2022, ByT5), or
            "bytes:N" for N sentinels of its own (ByT5 as published is "bytes:0": its sentinels
            are the last byte ids); or the path of
            - a SentencePiece model (Hugging Face's spiece.model or tokenizer.model): T5's,
              ALBERT's if it has [CLS], [SEP] and [MASK], or LLaMA's if it has <s>, and bytes,
            - vocab.txt, or any other .txt: WordPiece as BERT has it,
            - vocab.json beside merges.txt: byte-level BPE as RoBERTa and GPT-2 have it, or GPT's
              BPE within words if it has pieces that end in "</w>",
            - tokenizer.json, or any other .json, of the library `tokenizers`,
            - a folder with one of these, looked for in this order.
        sentinels: how many are put on top of T5's pieces or of the bytes, unless the spec says.

    Raises:
        ValueError: no such file, with the nearest; one that is not what its name says, or a
            SentencePiece model with other ids for padding, end of sequence or unknown.
    """
    spec = os.fspath(spec)
    name, colon, number = spec.partition(":")
    if name == BYTES:
        if colon and not number.isdecimal():
            raise ValueError(f"vocabulary={spec!r}: write bytes, or bytes:100 for 100 sentinels.")
        return seqio.ByteVocabulary(extra_ids=int(number) if colon else sentinels)
    path = _find(spec)
    if not path.endswith(tuple(_READERS)):
        return _sentence_pieces(path, spec=spec, sentinels=sentinels)
    read = next(read for ending, read in _READERS.items() if path.endswith(ending))
    try:
        return read(path)
    except ValueError as error:
        raise ValueError(f"vocabulary={spec!r}: {error}") from error


def check_marks(vocabulary: seqio.Vocabulary) -> None:
    """Makes sure that a vocabulary has what the objectives of encoders put into a text.

    Raises:
        ValueError: one of [CLS], [SEP] and [MASK], or RoBERTa's <s>, </s> and <mask>, is missing.
    """
    needed = ("cls_id", "sep_id", "mask_id")
    missing = [name for name in needed if getattr(vocabulary, name, None) is None]
    if missing:
        raise ValueError(
            f"vocabulary={vocabulary} has no {', '.join(missing)}, which this objective needs: "
            "take BERT's vocab.txt, RoBERTa's vocab.json, ALBERT's model, or train one by "
            "`python -m t5x_like.vocabulary --kind=wordpiece` (or byte_bpe, unigram_marks)."
        )


def _find(spec: str) -> str:
    """Returns the path of the file that is meant."""
    path = os.path.expanduser(spec)
    is_folder = tf.io.gfile.isdir(path)
    if not is_folder and tf.io.gfile.exists(path):
        return path
    folder = path if is_folder else os.path.dirname(path)
    found = tf.io.gfile.glob(os.path.join(folder, "*.model"))
    named = [os.path.join(folder, name) for name in _NAMES]
    named = [one for one in named if tf.io.gfile.exists(one)]
    if is_folder and len(found) == 1:
        return found[0]
    if is_folder and named and not found:
        return named[0]
    problem = f"is a folder with {len(found)} models" if is_folder else "does not exist"
    raise ValueError(f"vocabulary={spec!r} {problem}.{hint(path, [BYTES, *found, *named])}")


def _sentence_pieces(path: str, *, spec: str, sentinels: int) -> seqio.Vocabulary:
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            tokenizer = sentencepiece.SentencePieceProcessor(model_proto=file.read())
    except (DecodeError, RuntimeError) as error:
        raise ValueError(f"vocabulary={spec!r} is no SentencePiece model.") from error
    marks = set(marked.ALBERT_MARKS[2:])
    if marks <= {tokenizer.IdToPiece(number) for number in range(len(tokenizer))}:
        return marked.sentence_pieces(tokenizer.serialized_model_proto(), settings=_settings(path))
    ids = (tokenizer.pad_id(), tokenizer.eos_id(), tokenizer.unk_id())
    if (tokenizer.bos_id(), *ids) == (1, -1, 2, 0) and tokenizer.IsByte(3):
        return LosslessSentencePiece(tokenizer.serialized_model_proto())
    if ids != (PAD, EOS, UNKNOWN):
        raise ValueError(
            f"vocabulary={spec!r} has the ids {ids} for padding, end of sequence and unknown, "
            f"where {(PAD, EOS, UNKNOWN)} are needed (`python -m t5x_like.vocabulary` trains one)."
        )
    return seqio.SentencePieceVocabulary(path, extra_ids=sentinels)


def _wordpiece(path: str) -> marked.MarkedVocabulary:
    return marked.wordpiece(_lines(path), settings=_settings(path))


def _bpe(path: str) -> marked.MarkedVocabulary:
    merges_path = _beside(path, "merges.txt")
    if not tf.io.gfile.exists(merges_path):
        raise ValueError(f"the file {merges_path!r} has to stand beside it.")
    lines = [line for line in _lines(merges_path) if not line.startswith("#version")]
    merges = [(first, second) for first, _, second in (line.partition(" ") for line in lines)]
    ids = _json(path)
    if any(piece.endswith(word_bpe.ENDS_WORD) for piece in ids):
        return word_bpe.WordBpe(ids, merges)
    return marked.byte_bpe(ids, merges, settings=_settings(path))


def _tokenizer(path: str) -> marked.MarkedVocabulary:
    try:
        return marked.TokenizerVocabulary(tokenizers.Tokenizer.from_str(_text(path)))
    except Exception as error:  # it raises no other class
        raise ValueError(f"is no tokenizer of the library `tokenizers`: {error}.") from error


_READERS: Mapping[str, Callable[[str], marked.MarkedVocabulary]] = {
    ".txt": _wordpiece,
    "vocab.json": _bpe,
    ".json": _tokenizer,
}


def _beside(path: str, name: str) -> str:
    return os.path.join(os.path.dirname(path), name)


def _settings(path: str) -> dict[str, Any]:
    """What the tokenizer_config.json beside a vocabulary says, if there is one."""
    config = _beside(path, _CONFIG)
    return _json(config) if tf.io.gfile.exists(config) else {}


def _json(path: str) -> dict[str, Any]:
    try:
        content = json.loads(_text(path))
    except ValueError as error:
        raise ValueError(f"{path!r} is no JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path!r} is no JSON object.")
    return content


def _lines(path: str) -> list[str]:
    """The lines of a file; other ends of lines than these may be pieces, such as U+2028."""
    return _text(path).replace("\r\n", "\n").rstrip("\n").split("\n")


def _text(path: str) -> str:
    with tf.io.gfile.GFile(path, "rb") as file:
        try:
            return file.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path!r} is no text: {error}.") from error
