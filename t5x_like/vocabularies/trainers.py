"""Train vocabularies from text: SentencePiece, WordPiece, byte-level BPE and others.

The same documents in the same order give the same file, byte for byte, and files are written
atomically.
"""

import collections
import functools
import inspect
import io
import json
import os
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from t5x_like.names import choose, hint
from t5x_like.vocabularies import word_bpe, words
from t5x_like.vocabularies.albert_pieces import AlbertText
from t5x_like.vocabularies.sentence_piece import EOS, PAD, UNKNOWN
from t5x_like.vocabularies.special_tokens import (
    ALBERT_SPECIAL_TOKENS,
    BERT_SPECIAL_TOKENS,
    END_OF_TEXT,
    ROBERTA_SPECIAL_TOKENS,
)
from t5x_like.vocabularies.tokenizer import CONTINUES, bert_normalizer

# SentencePiece ignores sentences above its limit in bytes, so longer lines are split beforehand.
_LINE_CHARACTERS = 1000
_LINE_BYTES = 4 * _LINE_CHARACTERS
# Fixed, since the order in which threads add floats can change which pieces are chosen.
_THREADS = 16
# A pair that occurs once is not worth a piece.
_LEAST_COUNT = 2


def train(
    documents: Iterable[str],
    *,
    vocab_size: int,
    output: str | os.PathLike[str],
    kind: str = "unigram",
    **settings: Any,
) -> None:
    """Train a vocabulary and write its files for `vocabularies.load`.

    Args:
        documents: texts of any length; they are read once, and all are kept in memory.
        vocab_size: the number of pieces, including special tokens, without T5's sentinels.
        output: the path of the file (a vocab.txt for wordpiece), or for BPE kinds with vocab.json
            and merges.txt of the folder; missing folders are created.
        kind: a name in `KINDS`.
        settings: the settings of that kind, arguments of its function.

    Raises:
        ValueError: the kind or a setting does not exist, all documents are empty, or the text does
            not allow this size (the message gives the limit).
    """
    make = choose("kind", kind, KINDS)
    allowed = [name for name in inspect.signature(make).parameters if name != "vocab_size"][1:]
    for name in settings:
        if name not in allowed:
            raise ValueError(f"kind={kind!r} has no setting {name!r}.{hint(name, allowed)}")
    # Read all texts first: libraries would replace an error while reading, or Ctrl-C, by another.
    texts = [text for text in documents if text.strip()]
    if not texts:
        raise ValueError("There is no text to train a vocabulary on: all documents are empty.")
    for name, content in make(texts, vocab_size=vocab_size, **settings).items():
        _write(Path(output) / name, content)


def _unigram(
    documents: Iterable[str],
    *,
    vocab_size: int,
    byte_fallback: bool = False,
    character_coverage: float = 0.9995,
    split_digits: bool = False,
    keep_characters: bool = False,
    whole_words: Sequence[str] = (),
    every_word: bool = False,
) -> dict[str, bytes]:
    """Train T5's vocabulary, a unigram SentencePiece model (Kudo 2018).

    Text is normalized by NFKC, runs of whitespace (including line breaks) become one space, and no
    piece crosses the boundary between two words.

    Args:
        byte_fallback: encode uncovered characters as bytes, with 256 more pieces, rather than as
            the unknown token.
        character_coverage: the share of the text's characters that must have a piece; the rarest
            characters have none. 1.0 suits a small alphabet, 0.9995 a large set of characters.
        split_digits: whether each digit is a separate piece.
        keep_characters: do not normalize by NFKC, as in Chinchilla (Hoffmann et al. 2022, section
            4.1). Runs of blanks still become one blank; a line break, which NFKC replaces by a
            space, has no piece, and is encoded as a byte with `byte_fallback`.
        whole_words: words that are one piece each, however rare; longer words may begin with it.
        every_word: whether each word of the text is one piece; for text of few words, which
            SentencePiece would split into letters: it counts a piece once for each different
            word that contains it.
    """
    content = _sentence_pieces(
        documents,
        vocab_size=vocab_size,
        whole_words=whole_words,
        every_word=every_word,
        pad_id=PAD,
        eos_id=EOS,
        unk_id=UNKNOWN,
        byte_fallback=byte_fallback,
        character_coverage=character_coverage,
        split_digits=split_digits,
        normalization_rule_name="identity" if keep_characters else "nmt_nfkc",
    )
    return {"": content}


def _albert(
    documents: Iterable[str],
    *,
    vocab_size: int,
    keep_case: bool = False,
    byte_fallback: bool = False,
    character_coverage: float = 0.9995,
    split_digits: bool = False,
    every_word: bool = False,
) -> dict[str, bytes]:
    """Train ALBERT's vocabulary: like T5's, on text without accents, with other special tokens.

    Args:
        keep_case: keep upper case.
        byte_fallback, character_coverage, split_digits, every_word: see `_unigram`.
    """
    prepare = AlbertText(lower_case=not keep_case)
    _, _, *controls = ALBERT_SPECIAL_TOKENS
    content = _sentence_pieces(
        map(prepare, documents),
        vocab_size=vocab_size,
        every_word=every_word,
        pad_id=0,
        unk_id=1,
        eos_id=-1,
        control_symbols=controls,
        byte_fallback=byte_fallback,
        character_coverage=character_coverage,
        split_digits=split_digits,
    )
    return {"": content}


def _lossless(
    documents: Iterable[str],
    *,
    vocab_size: int,
    character_coverage: float = 0.9995,
    model_type: str,
) -> dict[str, bytes]:
    """Train LLaMA's vocabulary (BPE, Touvron et al. 2023, section 2.1) or PaLM's (section 2.2).

    Text is not normalized, each digit is a piece, runs of blanks are pieces, and uncovered
    characters are encoded as bytes. PaLM's paper does not name SentencePiece's model type; here it
    is unigram.
    """
    content = _sentence_pieces(
        documents,
        vocab_size=vocab_size,
        model_type=model_type,
        pad_id=-1,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        byte_fallback=True,
        split_digits=True,
        character_coverage=character_coverage,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
    )
    return {"": content}


def _wordpiece(
    documents: Iterable[str],
    *,
    vocab_size: int,
    keep_case: bool = False,
    character_coverage: float = 0.9995,
) -> dict[str, bytes]:
    """Train BERT's vocabulary: special tokens, characters that begin or continue words, pieces.

    BERT's algorithm was not published. As in the library `tokenizers`, longer pieces come from
    byte-pair encoding (Sennrich et al. 2016), which merges the most frequent pair first.

    Args:
        keep_case: keep upper case and accents.
        character_coverage: see `_unigram`; a word with a rarer character will be unknown.
    """
    normalizer = bert_normalizer(lower_case=not keep_case)
    lines = [normalizer.normalize_str(line) for line in _lines(documents)]
    characters = _covered(lines, share=character_coverage)
    # Characters are special tokens, too: the trainer would order them differently in each run.
    first = [
        *BERT_SPECIAL_TOKENS,
        *characters,
        *(CONTINUES + character for character in characters),
    ]
    if vocab_size < len(first):
        raise ValueError(
            f"--size={vocab_size}: {len(first)} special tokens and characters are needed."
        )
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=_LEAST_COUNT,
        special_tokens=first,
        show_progress=False,
    )
    rare = dict.fromkeys(map(ord, set().union(*lines) - set(characters)), " ")
    tokenizer.train_from_iterator((line.translate(rare) for line in lines), trainer)
    pieces = _all_of(tokenizer.get_vocab(), vocab_size=vocab_size)
    return {"": "".join(f"{piece}\n" for piece in pieces).encode()}


def _words(documents: Iterable[str], *, vocab_size: int) -> dict[str, bytes]:
    """Make ELMo's vocabulary (Peters et al. 2018): <S>, </S>, <UNK> and the most frequent words."""
    counts: collections.Counter[str] = collections.Counter()
    for line in _lines(documents):
        counts.update(word for word, _ in words.split(line))
    ranked = sorted(counts.keys() - {*words.WORD_SPECIAL_TOKENS}, key=lambda w: (-counts[w], w))
    pieces = [*words.WORD_SPECIAL_TOKENS, *ranked]
    if len(pieces) < vocab_size:
        raise ValueError(f"--size={vocab_size}: the text gives only {len(pieces)} words.")
    return {"": "".join(f"{piece}\n" for piece in pieces[:vocab_size]).encode()}


def _word_bpe(
    documents: Iterable[str], *, vocab_size: int, character_coverage: float = 0.9995
) -> dict[str, bytes]:
    """Train GPT's vocabulary: <unk>, characters within or at the end of words, pieces, line break.

    Args:
        character_coverage: see `_unigram`; a word with a rarer character will be unknown.
    """
    tokenizer = word_bpe.word_tokenizer(
        models.BPE(unk_token=_UNKNOWN, end_of_word_suffix=word_bpe.ENDS_WORD)
    )
    normalize = tokenizer.normalizer.normalize_str
    lines = [normalize(line) for line in _lines(documents)]
    characters = _covered(lines, share=character_coverage)
    ends = [character + word_bpe.ENDS_WORD for character in characters]
    first = [_UNKNOWN, *characters, *ends]  # as special tokens, as for WordPiece
    if vocab_size <= len(first):
        raise ValueError(f"--size={vocab_size}: {len(first) + 1} characters are needed.")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=_LEAST_COUNT,
        special_tokens=first,
        end_of_word_suffix=word_bpe.ENDS_WORD,
        show_progress=False,
    )
    rare = dict.fromkeys(map(ord, set().union(*lines) - set(characters)), " ")
    tokenizer.train_from_iterator((line.translate(rare) for line in lines), trainer)
    return _bpe_files(tokenizer, last=word_bpe.LINE_BREAK, vocab_size=vocab_size)


def _byte_bpe(
    documents: Iterable[str], *, vocab_size: int, first: Sequence[str] = (), last: str
) -> dict[str, bytes]:
    """Train byte-level BPE (Radford et al. 2019, section 2.2), with `last` as the last piece."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    least = len(first) + len(alphabet) + 1
    if vocab_size < least:
        raise ValueError(f"--size={vocab_size}: {least} special tokens and bytes are needed.")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=_LEAST_COUNT,
        special_tokens=list(first),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return _bpe_files(tokenizer, last=last, vocab_size=vocab_size)


def _bpe_files(tokenizer: Any, *, last: str, vocab_size: int) -> dict[str, bytes]:
    """Return merges.txt and vocab.json of a trained tokenizer, with the piece `last` added."""
    ids = tokenizer.get_vocab()
    pieces = _all_of({**ids, last: len(ids)}, vocab_size=vocab_size)
    ids = {piece: number for number, piece in enumerate(pieces)}
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    return {
        "merges.txt": "".join(f"{line}\n" for line in lines).encode(),
        "vocab.json": json.dumps(ids, ensure_ascii=False).encode(),
    }


_PAD, _UNKNOWN, _START, _END, _MASK = ROBERTA_SPECIAL_TOKENS
KINDS: Mapping[str, Callable[..., dict[str, bytes]]] = {
    "unigram": _unigram,
    "albert": _albert,
    "wordpiece": _wordpiece,
    "words": _words,
    "byte_bpe": functools.partial(_byte_bpe, first=(_START, _PAD, _END, _UNKNOWN), last=_MASK),
    "gpt2_bpe": functools.partial(_byte_bpe, last=END_OF_TEXT),
    "gpt_bpe": _word_bpe,
    "llama": functools.partial(_lossless, model_type="bpe"),
    "palm": functools.partial(_lossless, model_type="unigram"),
}


def _sentence_pieces(
    documents: Iterable[str],
    *,
    vocab_size: int,
    whole_words: Sequence[str] = (),
    every_word: bool = False,
    **settings: Any,
) -> bytes:
    lines, model = list(_lines(documents)), io.BytesIO()
    if every_word:
        whole_words = [*whole_words, *_different_words(lines)]
        lines.append(_alphabet(whole_words))
        settings["character_coverage"] = 1.0  # only this line is left to count them in
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=vocab_size,
            max_sentence_length=_LINE_BYTES,
            num_threads=_THREADS,
            minloglevel=2,
            user_defined_symbols=[f"\u2581{word}" for word in dict.fromkeys(whole_words)],
            **{"model_type": "unigram", "bos_id": -1, **settings},
        )
    except RuntimeError as error:  # "INTERNAL: file(line) [condition] sentence for the user"
        reason = str(error).rpartition("] ")[2]
        if not reason.startswith("Vocabulary size"):
            raise
        raise ValueError(f"--size={vocab_size}: {reason}") from error
    return model.getvalue()


def _different_words(lines: Iterable[str]) -> list[str]:
    """Return the different words of a text, longest first."""
    words = {word for line in lines for word in line.split()}
    return sorted(words, key=lambda word: (-len(word), word))


def _alphabet(words: Sequence[str]) -> str:
    """Return a line of all characters, so that a model of whole words has them as pieces, too."""
    characters = sorted(set().union(*words))
    # A character that is a word counts as this word at the beginning of a line, so such a character
    # does not come first, and all come twice.
    first = [character for character in characters if character not in words][:1]
    return "".join([*first, *characters, *characters])


def _covered(lines: Iterable[str], *, share: float) -> list[str]:
    """Return the most frequent characters that cover a share of the text without blanks, sorted."""
    counts: collections.Counter[str] = collections.Counter()
    for line in lines:
        counts.update(line)
    counts = collections.Counter(
        {character: n for character, n in counts.items() if not character.isspace()}
    )
    left, characters = share * counts.total(), []
    for character, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
        if left <= 0:
            break
        characters.append(character)
        left -= count
    return sorted(characters)


def _all_of(ids: Mapping[str, int], *, vocab_size: int) -> list[str]:
    """Return the pieces in the order of their ids.

    Raises:
        ValueError: there are fewer than `vocab_size`.
    """
    if len(ids) < vocab_size:
        raise ValueError(f"--size={vocab_size}: the text gives only {len(ids)} pieces.")
    return sorted(ids, key=ids.__getitem__)


def _lines(documents: Iterable[str]) -> Iterator[str]:
    """Split documents at line breaks, and long lines at blanks, since no piece crosses a blank."""
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
    os.chmod(temporary.name, 0o644)  # temporary files can be read only by the owner
    os.replace(temporary.name, path)
