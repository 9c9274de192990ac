"""Vocabularies with marks, [CLS], [SEP] and [MASK]: WordPiece, byte-level BPE, SentencePiece.

| who | file | the marks in it | text before it is cut |
|---|---|---|---|
| BERT (WordPiece) | vocab.txt | [PAD] [UNK] [CLS] [SEP] [MASK] | cleaned, split, lower case |
| RoBERTa (bytes) | vocab.json, merges.txt | <pad> <unk> <s> </s> <mask> | as it is |
| ALBERT (unigram) | a .model | <pad> <unk> [CLS] [SEP] [MASK] | quotes, accents, lower case |
| any of them, LLaMA 3 | tokenizer.json | their names | as the file says |

The .model of LLaMA and PaLM, with <unk> <s> </s>, is that of lossless_vocabularies.py.

A mark that stands in a text, such as "[MASK]", is read as that mark. Whether WordPiece and
SentencePiece lower the case is what `do_lower_case` of a tokenizer_config.json beside the file
says; without it they do exactly if no piece has an upper-case ASCII letter (marks and others in
square brackets aside), since such a vocabulary could only read "The" as unknown.

Decoding shows every id: marks by their names, an id that is none as unknown. What encoding has
changed (case, accents, blanks around WordPiece's punctuation) does not come back.
"""

import abc
import dataclasses
import functools
import hashlib
import math
import os
import re
import string
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece
import seqio
import tensorflow as tf
import tokenizers
from jaxtyping import Bool
from sentencepiece import sentencepiece_pb2
from tokenizers import decoders, models, normalizers, pre_tokenizers

# Texts are encoded one by one in threads of tf.data, so threads within a text would only contend.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

BERT_MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_MARKS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
END_OF_TEXT = "<|endoftext|>"  # GPT-2's only one
LLAMA_3_MARKS = ("<|begin_of_text|>", "<|end_of_text|>")
ALBERT_MARKS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
CONTINUES = "##"  # what WordPiece puts before a piece within a word
_BLANK = "\u2581"  # what SentencePiece puts before a word
# Byte-level BPE writes each byte as a character: these are blank, newline, return and tab.
_BYTE_BLANKS = "\u0120\u010a\u010d\u0109"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class MarkedVocabulary(seqio.Vocabulary):
    """A vocabulary with marks; two that come from equal files are equal.

    Attributes:
        pad_id, unk_id, cls_id, sep_id, mask_id: of the marks; None where the file has no such one,
            but 0 for the padding, which every batch needs.
        bos_id, eos_id: the first and the last of a row: cls_id and sep_id, or LLaMA 3's begin and
            end of text, or GPT-2's end alone.
        start_id: what a decoder reads before a text: LLaMA's <s>, else the end of another text.
        special_ids: those of all marks, in order: never masked, never drawn as a random token.
        pieces: V strings as the file has them.
        word_starts: where a piece begins a word. The first token of a text does, too, though
            byte-level BPE only tells by the blank before a word, which is not there.
    """

    def __init__(self, pieces: Sequence[str], *, marks: Iterable[str], contents: bytes):
        """Names the marks; `contents` is all that decides how a text is encoded."""
        super().__init__(extra_ids=0)
        self.pieces = tuple(pieces)
        ids = {piece: number for number, piece in enumerate(self.pieces)}
        self._marks = {mark: ids[mark] for mark in marks if mark in ids}
        self._digest = hashlib.sha256(contents).hexdigest()
        self.special_ids = tuple(sorted(self._marks.values()))

    pad_id = property(lambda self: self._first("[PAD]", "<pad>") or 0)
    unk_id = property(lambda self: self._first("[UNK]", "<unk>"))
    cls_id = property(lambda self: self._first("[CLS]", "<s>"))
    sep_id = property(lambda self: self._first("[SEP]", "</s>"))
    mask_id = property(lambda self: self._first("[MASK]", "<mask>"))
    bos_id = property(lambda self: self._first("[CLS]", "<s>", LLAMA_3_MARKS[0]))
    eos_id = property(lambda self: self._first("[SEP]", "</s>", END_OF_TEXT, LLAMA_3_MARKS[1]))

    def _first(self, *names: str) -> int | None:
        return next((self._marks[name] for name in names if name in self._marks), None)

    @property
    def start_id(self) -> int | None:
        """See the class."""
        # Where there is a mask, as in BART, a row's <s> is what an encoder reads.
        return self.eos_id if self.mask_id is not None or self.bos_id is None else self.bos_id

    @functools.cached_property
    def word_starts(self) -> Bool[np.ndarray, "V"]:
        """See the class."""
        marks = self._marks
        return np.array([piece in marks or self._begins_word(piece) for piece in self.pieces])

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids [L]: all of them, also after an end of sequence."""
        # Over an eager tensor itself a loop would be hundreds of times as slow.
        numbers = ids.numpy() if isinstance(ids, tf.Tensor) else ids
        return self._decode([int(one) for one in numbers])

    def decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        """The texts of token ids [..., L], within tf.data or not."""
        return self._decode_tf(tf.convert_to_tensor(ids))

    def encode_with_offsets(self, s: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids [L] of a text, and the first character of each and the one after its last.

        The blanks before and after a word are of no token; what has only blanks is an empty range.
        """
        ids, ranges = self._encode_with_offsets(s)
        return ids, [_without_blanks(s, *one) for one in ranges]

    @abc.abstractmethod
    def _encode_with_offsets(self, s: str) -> tuple[list[int], list[tuple[int, int]]]: ...

    @abc.abstractmethod
    def _begins_word(self, piece: str) -> bool: ...

    @property
    def _base_vocab_size(self) -> int:
        return len(self.pieces)

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        def encode(text: bytes, digest: bytes) -> np.ndarray:
            del digest
            return np.array(self._encode(text.decode("utf-8", errors="replace")), np.int32)

        # The digest is for a data position's fingerprint: it sees operations and constants, and
        # so another vocabulary only by this one.
        ids = tf.numpy_function(encode, [s, tf.constant(self._digest)], tf.int32, stateful=False)
        ids.set_shape([None])
        return ids

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        def decode(rows: np.ndarray) -> np.ndarray:
            *shape, length = rows.shape
            texts = [self.decode(row).encode() for row in rows.reshape(math.prod(shape), length)]
            return np.array(texts, object).reshape(shape)

        texts = tf.numpy_function(decode, [ids], tf.string, stateful=False)
        texts.set_shape(ids.shape[:-1])
        return texts

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __str__(self) -> str:
        return f"{type(self).__name__}(size={self.vocab_size}, sha256={self._digest[:12]})"


class TokenizerVocabulary(MarkedVocabulary):
    """Any tokenizer of the library `tokenizers`, without the marks that it would add itself."""

    def __init__(self, tokenizer: tokenizers.Tokenizer):
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        ids = tokenizer.get_vocab()
        pieces = [_REPLACEMENT] * (max(ids.values(), default=-1) + 1)
        for piece, number in ids.items():
            pieces[number] = piece
        model = tokenizer.model
        self._continues = getattr(model, "continuing_subword_prefix", None)
        self._blanks = _BLANK if any(piece.startswith(_BLANK) for piece in pieces) else _BYTE_BLANKS
        marks = (*BERT_MARKS, *ROBERTA_MARKS, END_OF_TEXT, *LLAMA_3_MARKS)
        super().__init__(pieces, marks=marks, contents=tokenizer.to_str().encode())

    def _begins_word(self, piece: str) -> bool:
        if self._continues:
            return not piece.startswith(self._continues)
        return piece.startswith(tuple(self._blanks))

    def _encode(self, s: str) -> list[int]:
        return self._tokenizer.encode(s, add_special_tokens=False).ids

    def _encode_with_offsets(self, s: str) -> tuple[list[int], list[tuple[int, int]]]:
        found = self._tokenizer.encode(s, add_special_tokens=False)
        return found.ids, found.offsets

    def _decode(self, ids: Sequence[int]) -> str:
        unknown = _REPLACEMENT if self.unk_id is None else self.pieces[self.unk_id]
        size = len(self.pieces)
        pieces = [self.pieces[one] if 0 <= one < size else unknown for one in ids]
        decoder = self._tokenizer.decoder
        return decoder.decode(pieces) if decoder else " ".join(pieces)


class MarkedSentencePiece(MarkedVocabulary):
    """A SentencePiece model over text that is prepared as for ALBERT (Lan et al. 2020).

    Args:
        model: the content of its file.
        prepare: text -> the text that the model cuts into pieces.

    A number's comma stays with its digit if there is such a piece, as in Hugging Face's ALBERT;
    the original code splits it off.
    """

    def __init__(self, model: bytes, *, prepare: "AlbertText"):
        self._model, self._prepare = (
            sentencepiece.SentencePieceProcessor(model_proto=model),
            prepare,
        )
        pieces = [self._model.IdToPiece(number) for number in range(len(self._model))]
        super().__init__(pieces, marks=ALBERT_MARKS, contents=model + repr(prepare).encode())
        self._split = re.compile(f"({'|'.join(map(re.escape, self._marks))})").split

    def _begins_word(self, piece: str) -> bool:
        """As in ALBERT's code, where only ASCII letters continue a word, and marks within them."""
        alone = len(piece) == 1 and piece in string.punctuation
        return alone or piece.startswith((_BLANK, "<")) or not _WITHIN_WORDS.issuperset(piece)

    def _encode(self, s: str) -> list[int]:
        ids: list[int] = []
        for place, part in enumerate(self._split(s)):
            ids += (
                [self._marks[part]] if place % 2 else self._model.EncodeAsIds(self._prepare(part))
            )
        return ids

    def _encode_with_offsets(self, s: str) -> tuple[list[int], list[tuple[int, int]]]:
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        start = 0
        for place, part in enumerate(self._split(s)):
            if place % 2:
                ids.append(self._marks[part])
                offsets.append((start, start + len(part)))
            elif part:
                origins = [*self._prepare.origins(part), (len(part), len(part))]
                for number, first, after_last in cut(self._prepare(part), model=self._model):
                    last = max(first, after_last - 1)
                    ids.append(number)
                    offsets.append((start + origins[first][0], start + origins[last][1]))
            start += len(part)
        return ids, offsets

    def _decode(self, ids: Sequence[int]) -> str:
        assert self.unk_id is not None  # for the type checker
        size, names = len(self.pieces), {number: name for name, number in self._marks.items()}
        parts: list[str] = []
        run: list[int] = []
        for one in [one if 0 <= one < size else self.unk_id for one in ids]:
            if one in names:
                parts += [self._model.DecodeIds(run), names[one]] if run else [names[one]]
                run = []
            else:
                run.append(one)
        return " ".join([*parts, self._model.DecodeIds(run)] if run else parts)


def cut(
    text: str, *, model: sentencepiece.SentencePieceProcessor
) -> Iterator[tuple[int, int, int]]:
    """The pieces of a text with their first characters and those after their last ones."""
    encoded = model.Encode(text, out_type="serialized_proto")
    characters = [place for place, one in enumerate(text) for _ in one.encode()]
    characters.append(len(text))  # by bytes, which is what it counts in
    proto = sentencepiece_pb2.SentencePieceText  # type: ignore[attr-defined]  # made at import
    for piece in proto.FromString(encoded).pieces:
        yield piece.id, characters[piece.begin], characters[piece.end]


@dataclasses.dataclass(frozen=True)
class AlbertText:
    """Text as ALBERT's models read it: plain quotes, no accents, and lower case if they say so."""

    lower_case: bool = True
    keep_accents: bool = False

    def __call__(self, text: str) -> str:
        """The text without what the model has never seen."""
        text = text.replace("``", '"').replace("''", '"')
        if not self.keep_accents:
            letters = unicodedata.normalize("NFKD", text)
            text = "".join(letter for letter in letters if not unicodedata.combining(letter))
        return text.lower() if self.lower_case else text

    def origins(self, text: str) -> list[tuple[int, int]]:
        """For each character of the prepared text, those of `text` that it was made of."""
        parts = re.finditer("``|''|.", text, re.DOTALL)
        return [part.span() for part in parts for _ in self(part.group())]


def _without_blanks(text: str, start: int, end: int) -> tuple[int, int]:
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    return start, start + len(part.strip())


# A piece of these alone may go on a word.
_WITHIN_WORDS = frozenset(string.ascii_letters + string.punctuation) - set("'<=>")


def wordpiece(pieces: Sequence[str], *, settings: Mapping[str, Any]) -> MarkedVocabulary:
    """BERT's vocabulary (Devlin et al. 2019): words of text, the longest piece first.

    Args:
        pieces: of vocab.txt.
        settings: of tokenizer_config.json: do_lower_case, strip_accents, tokenize_chinese_chars.

    Raises:
        ValueError: a mark is missing, or a piece is there twice.
    """
    missing = [mark for mark in BERT_MARKS if mark not in pieces]
    if missing:
        raise ValueError(f"lacks the pieces {', '.join(missing)} of BERT.")
    ids = {piece: number for number, piece in enumerate(pieces)}
    twice = [piece for number, piece in enumerate(pieces) if ids[piece] != number]
    if twice:
        raise ValueError(f"has the piece {twice[0]!r} on two lines.")
    tokenizer = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = bert_normalizer(
        lower_case=_lowers_case(pieces, settings=settings),
        strip_accents=settings.get("strip_accents"),
        split_chinese=settings.get("tokenize_chinese_chars", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUES, cleanup=False)
    tokenizer.add_special_tokens(list(BERT_MARKS))
    return TokenizerVocabulary(tokenizer)


def bert_normalizer(
    *, lower_case: bool, strip_accents: bool | None = None, split_chinese: bool = True
) -> normalizers.Normalizer:
    """BERT's cleaning: no control characters, blanks around CJK, accents go with the case."""
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=split_chinese,
        strip_accents=strip_accents,
        lowercase=lower_case,
    )


def byte_bpe(
    ids: Mapping[str, int], merges: Sequence[tuple[str, str]], *, settings: Mapping[str, Any]
) -> MarkedVocabulary:
    """GPT-2's byte-level BPE (Radford et al. 2019), which RoBERTa has with marks of its own.

    Args:
        ids: of vocab.json.
        merges: of merges.txt, the first to be made first.
        settings: of tokenizer_config.json: add_prefix_space.

    Raises:
        ValueError: a merge is of or makes what is no piece.
    """
    # Without it a byte that has no piece would be left out.
    unknown = "<unk>" if "<unk>" in ids else None
    try:
        model = models.BPE(dict(ids), list(merges), unk_token=unknown)
    except Exception as error:  # of no class more special
        raise ValueError(f"merges.txt does not fit: {error}.") from error
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=settings.get("add_prefix_space", False)
    )
    tokenizer.decoder = decoders.ByteLevel()
    marks = [mark for mark in (*ROBERTA_MARKS, END_OF_TEXT) if mark in ids]
    # RoBERTa's mask takes the blank before it, as a word would.
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(mark, lstrip=mark == "<mask>", special=True) for mark in marks]
    )
    return TokenizerVocabulary(tokenizer)


def sentence_pieces(model: bytes, *, settings: Mapping[str, Any]) -> MarkedVocabulary:
    """ALBERT's vocabulary; `settings` of tokenizer_config.json: do_lower_case, keep_accents."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.IdToPiece(number) for number in range(len(processor))]
    lower_case = _lowers_case(pieces, settings=settings)
    keep_accents = settings.get("keep_accents", False)
    prepare = AlbertText(lower_case=lower_case, keep_accents=keep_accents)
    return MarkedSentencePiece(model, prepare=prepare)


def _lowers_case(pieces: Iterable[str], *, settings: Mapping[str, Any]) -> bool:
    """See the top of the file."""
    said = settings.get("do_lower_case")
    upper_case = re.compile(r"(?!\[.*\]$).*[A-Z]", re.DOTALL)
    return bool(said) if said is not None else not any(map(upper_case.match, pieces))
