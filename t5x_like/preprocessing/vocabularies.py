"""Vocabularies: given as a SentencePiece model or as bytes, or trained from text.

Token ids, as T5 has them: 0 padding, 1 end of sequence, 2 unknown, then the pieces. The sentinels
of span corruption are the last ids, counted down: `<extra_id_0>` is `vocab_size - 1`.
"""

import io
import os
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import sentencepiece
import seqio
import tensorflow as tf
from google.protobuf.message import DecodeError

from t5x_like.names import hint

BYTES = "bytes"
SENTINELS = 100
PAD, EOS, UNKNOWN = 0, 1, 2

# SentencePiece leaves out sentences over its limit in bytes, so longer lines are cut before.
_LINE_CHARACTERS = 1000
_LINE_BYTES = 4 * _LINE_CHARACTERS
# A fixed number, since it decides in which order floats are added, and so the last pieces.
_THREADS = 16


def load(spec: str | os.PathLike[str], *, sentinels: int = SENTINELS) -> seqio.Vocabulary:
    """Returns the vocabulary that a config names.

    Args:
        spec: path of a SentencePiece model, or of a folder with one (as Hugging Face's
            spiece.model); or "bytes", the 256 bytes of UTF-8 and the three ids above (Xue et al.
            2022, ByT5), or "bytes:N" for N sentinels of its own. ByT5 as published is "bytes:0":
            its sentinels are the last byte ids.
        sentinels: how many are put on top of the pieces, unless the spec says.

    Raises:
        ValueError: no such file, with the nearest; a file that is no SentencePiece model, or one
            with other ids for padding, end of sequence or unknown.
    """
    spec = os.fspath(spec)
    name, colon, number = spec.partition(":")
    if name == BYTES:
        if colon and not number.isdecimal():
            raise ValueError(f"vocabulary={spec!r}: write bytes, or bytes:100 for 100 sentinels.")
        return seqio.ByteVocabulary(extra_ids=int(number) if colon else sentinels)
    vocabulary = seqio.SentencePieceVocabulary(_find(spec), extra_ids=sentinels)
    try:
        tokenizer = vocabulary.tokenizer
    except (DecodeError, RuntimeError) as error:
        raise ValueError(f"vocabulary={spec!r} is no SentencePiece model.") from error
    ids = (tokenizer.pad_id(), tokenizer.eos_id(), tokenizer.unk_id())
    if ids != (PAD, EOS, UNKNOWN):
        raise ValueError(
            f"vocabulary={spec!r} has the ids {ids} for padding, end of sequence and unknown, "
            f"where {(PAD, EOS, UNKNOWN)} are needed (`python -m t5x_like.vocabulary` trains one)."
        )
    return vocabulary


def _find(spec: str) -> str:
    """Returns the path of the model file that is meant."""
    path = os.path.expanduser(spec)
    is_folder = tf.io.gfile.isdir(path)
    if not is_folder and tf.io.gfile.exists(path):
        return path
    folder = path if is_folder else os.path.dirname(path)
    models = tf.io.gfile.glob(os.path.join(folder, "*.model"))
    if is_folder and len(models) == 1:
        return models[0]
    problem = f"is a folder with {len(models)} models" if is_folder else "does not exist"
    raise ValueError(f"vocabulary={spec!r} {problem}.{hint(path, [BYTES, *models])}")


def train(
    documents: Iterable[str],
    *,
    vocab_size: int,
    output: str | os.PathLike[str],
    byte_fallback: bool = False,
    character_coverage: float = 0.9995,
    split_digits: bool = False,
) -> None:
    """Trains a unigram SentencePiece model (Kudo 2018) and writes it, whole or not at all.

    Text is normalized by NFKC, runs of whitespace (line breaks too) become one space, and a piece
    never holds the end of a word and the start of the next. The same documents in the same order
    give the same file, byte for byte.

    Args:
        documents: of any length; they are read once, and all are kept in memory.
        vocab_size: pieces, with padding, end of sequence and unknown, without sentinels.
        output: path of the file; its folder is made.
        byte_fallback: spell what is not covered by 256 pieces for bytes, in place of "unknown".
        character_coverage: the part of the text's characters that must have a piece; the rarest
            are left out. 1.0 suits an alphabet without noise, 0.9995 large sets of characters.
        split_digits: give each digit a piece of its own.

    Raises:
        ValueError: no text, or a size that it does not allow, with the limit.
    """
    model = io.BytesIO()
    # Read before it starts: an error or Ctrl-C inside SentencePiece would come out as another.
    lines = list(_lines(documents))
    if not lines:
        raise ValueError("There is no text to train a vocabulary on: all documents are empty.")
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            pad_id=PAD,
            eos_id=EOS,
            unk_id=UNKNOWN,
            bos_id=-1,
            byte_fallback=byte_fallback,
            character_coverage=character_coverage,
            split_digits=split_digits,
            max_sentence_length=_LINE_BYTES,
            num_threads=_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:  # "INTERNAL: file(line) [condition] sentence for the user"
        reason = str(error).rpartition("] ")[2]
        if not reason.startswith("Vocabulary size"):
            raise
        raise ValueError(f"vocab_size={vocab_size}: {reason}") from error
    _write(Path(output), model.getvalue())


def _lines(documents: Iterable[str]) -> Iterator[str]:
    """Cuts documents at line breaks, and long lines at blanks, where no piece is lost by it."""
    for document in documents:
        for line in document.splitlines():
            if len(line) <= _LINE_CHARACTERS:
                yield from [line] if line.strip() else []
            else:
                yield from textwrap.wrap(line, _LINE_CHARACTERS, break_on_hyphens=False)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as temporary:
        temporary.write(content)
    os.chmod(temporary.name, 0o644)  # a temporary file is for its owner alone
    os.replace(temporary.name, path)
