"""BERT's WordPiece, byte-level BPE, and every other tokenizer of the library `tokenizers`."""

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from t5x_like.vocabularies.base import Offsets
from t5x_like.vocabularies.special_tokens import (
    BERT_SPECIAL_TOKENS,
    END_OF_TEXT,
    LLAMA_3_SPECIAL_TOKENS,
    ROBERTA_SPECIAL_TOKENS,
    SpecialTokenVocabulary,
    lowers_case,
)


@contextlib.contextmanager
def as_value_errors(problem: str) -> Iterator[None]:
    """Re-raise errors in the block as one-line `ValueError`s that begin with `problem`.

    A ValueError of one line is raised unchanged. A panic in Rust is a `BaseException` whose class
    is not public.
    """
    try:
        yield
    except BaseException as error:
        is_panic = type(error).__name__ == "PanicException"
        if not isinstance(error, Exception) and not is_panic:
            raise
        first, _, rest = str(error).partition("\n")
        if isinstance(error, ValueError) and not rest:
            raise
        kind = "" if type(error) in (Exception, ValueError) or is_panic else type(error).__name__
        raise ValueError(f"{problem}: {kind}{': ' if kind else ''}{first.rstrip('.')}.") from error


# Threads of tf.data tokenize one text at a time each, so threads within a text would only contend.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

CONTINUES = "##"  # WordPiece's prefix of a piece that continues a word
_BLANK = "\u2581"  # SentencePiece's prefix of a word
# Byte-level BPE writes each byte as a character: these stand for blank, newline, return and tab.
_BYTE_BLANKS = "\u0120\u010a\u010d\u0109"
_USUAL = (
    *(*BERT_SPECIAL_TOKENS, *ROBERTA_SPECIAL_TOKENS, END_OF_TEXT),
    *LLAMA_3_SPECIAL_TOKENS,
)
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TokenizerVocabulary(SpecialTokenVocabulary):
    """A tokenizer of the library `tokenizers`, without the special tokens that it adds to texts.

    Attributes:
        tokenizer: the tokenizer.
        is_bpe: whether it is byte-pair encoding.

    Args:
        tokenizer: the tokenizer; its padding and truncation are turned off.
        special_tokens: the texts of its special tokens; None for the usual names.
        decides: other content that distinguishes vocabularies, for equality.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        special_tokens: Iterable[str] | None = None,
        decides: bytes = b"",
    ):
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self.tokenizer = tokenizer
        ids = tokenizer.get_vocab()
        pieces = [_REPLACEMENT] * (max(ids.values(), default=-1) + 1)
        for piece, number in ids.items():
            pieces[number] = piece
        model = tokenizer.model
        self.is_bpe = isinstance(model, models.BPE)
        self._literal = _never_bytes(tokenizer)
        added = tokenizer.get_added_tokens_decoder()
        self._flagged = {number for number, token in added.items() if token.special}
        self._continues = getattr(model, "continuing_subword_prefix", None)
        self._blanks = _BLANK if any(piece.startswith(_BLANK) for piece in pieces) else _BYTE_BLANKS
        super().__init__(
            pieces,
            special_tokens=_USUAL if special_tokens is None else sorted(special_tokens),
            contents=tokenizer.to_str().encode() + decides,
        )

    def encode(self, text: str) -> list[int]:
        """Tokenize a text."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def _begins_word(self, piece: str) -> bool:
        if self._continues:
            return not piece.startswith(self._continues)
        return piece.startswith(tuple(self._blanks))

    def _encode_with_offsets(self, text: str) -> tuple[list[int], Offsets]:
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def _without_special(self, ids: list[int]) -> list[int]:
        return [number for number in ids if number not in self._flagged]

    def _decode(self, ids: Sequence[int]) -> str:
        size = len(self.pieces)
        known = all(0 <= number < size for number in ids)
        if known and self._literal.isdisjoint(self.pieces[number] for number in ids):
            return self.tokenizer.decode(ids, skip_special_tokens=False)
        # GPT-2's folders name the end-of-text token as the unknown token, too.
        none = self.unk_id is None or self.unk_id in (self.bos_id, self.eos_id)
        unknown = _REPLACEMENT if none else self.pieces[self.required_id("unk_id")]
        pieces = [self.pieces[number] if 0 <= number < size else unknown for number in ids]
        decoder = self.tokenizer.decoder
        if decoder is None:
            return " ".join(pieces)
        runs = itertools.groupby(pieces, key=self._literal.__contains__)
        return "".join(
            "".join(run) if is_literal else decoder.decode(list(run)) for is_literal, run in runs
        )


def _never_bytes(tokenizer: tokenizers.Tokenizer) -> frozenset[str]:
    """Return the added tokens whose characters a byte-level decoder would take for bytes."""
    if "ByteLevel" not in repr(tokenizer.decoder):
        return frozenset()
    added = tokenizer.get_added_tokens_decoder().values()
    return frozenset(token.content for token in added if not token.content.isascii())


def wordpiece(pieces: Sequence[str], *, settings: Mapping[str, Any]) -> TokenizerVocabulary:
    """Make BERT's vocabulary (Devlin et al. 2019): each word is split into longest pieces first.

    Args:
        pieces: the lines of vocab.txt.
        settings: do_lower_case, strip_accents and tokenize_chinese_chars of tokenizer_config.json.

    Raises:
        ValueError: a special token is missing, or there is a piece twice.
    """
    missing = [name for name in BERT_SPECIAL_TOKENS if name not in pieces]
    if missing:
        raise ValueError(f"lacks the pieces {', '.join(missing)} of BERT.")
    ids = {piece: number for number, piece in enumerate(pieces)}
    twice = [piece for number, piece in enumerate(pieces) if ids[piece] != number]
    if twice:
        raise ValueError(f"has the piece {twice[0]!r} on two lines.")
    tokenizer = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = bert_normalizer(
        lower_case=lowers_case(pieces, settings=settings),
        strip_accents=settings.get("strip_accents"),
        split_chinese=settings.get("tokenize_chinese_chars", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUES, cleanup=False)
    tokenizer.add_special_tokens(list(BERT_SPECIAL_TOKENS))
    return TokenizerVocabulary(tokenizer)


def bert_normalizer(
    *, lower_case: bool, strip_accents: bool | None = None, split_chinese: bool = True
) -> normalizers.Normalizer:
    """Return BERT's normalizer: no control characters, blanks around CJK, case and accents.

    Args:
        lower_case: whether to lower-case letters.
        strip_accents: whether to remove accents; None for the value of `lower_case`.
        split_chinese: whether to put blanks around each CJK character.
    """
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=split_chinese,
        strip_accents=strip_accents,
        lowercase=lower_case,
    )


def byte_bpe(
    ids: Mapping[str, int], merges: Sequence[tuple[str, str]], *, settings: Mapping[str, Any]
) -> TokenizerVocabulary:
    """Make GPT-2's byte-level BPE (Radford et al. 2019), also with RoBERTa's special tokens.

    Args:
        ids: the content of vocab.json.
        merges: the pairs of merges.txt, in the order in which they are merged.
        settings: add_prefix_space and bos_token of tokenizer_config.json.

    Raises:
        ValueError: a part or a result of a merge is not a piece.
    """
    # Without an unknown token, a byte that has no piece would be dropped.
    unknown = "<unk>" if "<unk>" in ids else None
    try:
        model = models.BPE(dict(ids), list(merges), unk_token=unknown)
    except Exception as error:  # the library raises no narrower class
        raise ValueError(f"merges.txt does not fit: {error}.") from error
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=settings.get("add_prefix_space", False)
    )
    tokenizer.decoder = decoders.ByteLevel()
    names = [name for name in (*ROBERTA_SPECIAL_TOKENS, END_OF_TEXT) if name in ids]
    # RoBERTa's mask includes the blank before it, as a word does.
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(name, lstrip=name == "<mask>", special=True) for name in names]
    )
    vocabulary = TokenizerVocabulary(tokenizer)
    begin = settings.get("bos_token")
    name = str(begin.get("content") if isinstance(begin, Mapping) else begin)
    if vocabulary.bos_id is not None and name in ids:  # OPT begins with </s>, though it has <s>
        vocabulary.bos_id = ids[name]
    return vocabulary
