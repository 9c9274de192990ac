"""Vocabularies with special tokens of their own, such as [CLS], [SEP] and [MASK].

| who | file | special tokens | text before it is tokenized |
|---|---|---|---|
| BERT (WordPiece) | vocab.txt | [PAD] [UNK] [CLS] [SEP] [MASK] | cleaned, split, lower case |
| RoBERTa (bytes) | vocab.json, merges.txt | <pad> <unk> <s> </s> <mask> | unchanged |
| ALBERT (unigram) | a .model | <pad> <unk> [CLS] [SEP] [MASK] | quotes, accents, lower case |
| any of them, LLaMA 3 | tokenizer.json | their names | as the file defines it |
| LLaMA, PaLM | a .model | <unk> <s> </s> | unchanged |

These are files without the name of a tokenizer's class beside them; a folder in Hugging Face's
format decides for itself (`hugging_face`). A special token's name in a text, such as "[MASK]", is
read as that token, except by the last row's vocabularies. Decoding shows every id: special tokens
by their names, an id out of range as unknown. What encoding has changed (case, accents, blanks
around WordPiece's punctuation) does not come back.
"""

import abc
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from t5x_like.vocabularies.base import Offsets, Vocabulary, to_list

BERT_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
END_OF_TEXT = "<|endoftext|>"  # GPT-2's only special token
LLAMA_3_SPECIAL_TOKENS = ("<|begin_of_text|>", "<|end_of_text|>")
ALBERT_SPECIAL_TOKENS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")


class SpecialTokenVocabulary(Vocabulary):
    """A vocabulary whose file names its special tokens.

    `bos_id` and `eos_id` are the ids of [CLS] and [SEP] or <s> and </s>, of LLaMA 3's begin and end
    of text, or GPT-2's end of text alone.

    Attributes:
        pieces: the V strings of the file.
        special_tokens: the id of each special token by its name.

    Args:
        pieces: all pieces, in the order of their ids.
        special_tokens: their names; names that are not pieces are left out.
        contents: all that decides how a text is encoded, for equality.
    """

    def __init__(self, pieces: Sequence[str], *, special_tokens: Iterable[str], contents: bytes):
        super().__init__(vocab_size=len(pieces), contents=contents)
        self.pieces = tuple(pieces)
        ids = {piece: number for number, piece in enumerate(self.pieces)}
        self.special_tokens = {name: ids[name] for name in special_tokens if name in ids}
        self.special_ids = tuple(sorted(self.special_tokens.values()))
        self.pad_id = self._first("[PAD]", "<pad>") or 0
        self.unk_id = self._first("[UNK]", "<unk>")
        self.cls_id = self._first("[CLS]", "<s>")
        self.sep_id = self._first("[SEP]", "</s>")
        self.mask_id = self._first("[MASK]", "<mask>")
        self.bos_id = self._first("[CLS]", "<s>", LLAMA_3_SPECIAL_TOKENS[0])
        self.eos_id = self._first("[SEP]", "</s>", END_OF_TEXT, LLAMA_3_SPECIAL_TOKENS[1])
        if self.mask_id is not None and self.cls_id is not None and self.sep_id is not None:
            self.prefix_ids, self.suffix_ids = (self.cls_id,), (self.sep_id,)

    def _first(self, *names: str) -> int | None:
        found = (self.special_tokens[name] for name in names if name in self.special_tokens)
        return next(found, None)

    @property
    def start_id(self) -> int:
        """LLaMA's <s>; for BART and GPT-2 the token that ends a text; else padding."""
        # Where there is a mask, as in BART, a row's <s> is what an encoder reads.
        bos_starts = self.mask_id is None and self.bos_id is not None
        start = self.bos_id if bos_starts else self.eos_id
        return self.pad_id if start is None else start

    @functools.cached_property
    def word_starts(self) -> Bool[np.ndarray, " V"]:
        """Where a piece begins a word.

        The first token of a text begins one, too, but byte-level BPE shows a word's beginning only
        by the blank before it, which is not there.
        """
        special = self.special_tokens
        return np.array([piece in special or self._begins_word(piece) for piece in self.pieces])

    def decode(self, ids: Iterable[int]) -> str:
        """Detokenize ids [L], all of them, also after an end of sequence."""
        return self._decode(to_list(ids))

    def piece(self, token: int) -> str:
        """The piece as the file has it."""
        return self.pieces[token]

    def encode_with_offsets(self, text: str) -> tuple[list[int], Offsets]:
        """Tokenize a text into ids [L], with the range of characters of each.

        Blanks before and after a word belong to no token; a token of blanks has an empty range.
        """
        ids, ranges = self._encode_with_offsets(text)
        return ids, [_without_blanks(text, *one) for one in ranges]

    @abc.abstractmethod
    def _decode(self, ids: Sequence[int]) -> str: ...

    @abc.abstractmethod
    def _encode_with_offsets(self, text: str) -> tuple[list[int], Offsets]: ...

    @abc.abstractmethod
    def _begins_word(self, piece: str) -> bool: ...


def _without_blanks(text: str, start: int, end: int) -> tuple[int, int]:
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    return start, start + len(part.strip())


def check_special_tokens(vocabulary: Vocabulary) -> SpecialTokenVocabulary:
    """The vocabulary, which has the special tokens that the objectives of encoders need.

    Raises:
        ValueError: one of [CLS], [SEP] and [MASK], or RoBERTa's <s>, </s> and <mask>, is missing.
    """
    needed = ("cls_id", "sep_id", "mask_id")
    missing = [name for name in needed if getattr(vocabulary, name) is None]
    if missing:
        raise ValueError(
            f"vocabulary={vocabulary} has no {', '.join(missing)}, which this objective needs: "
            "use BERT's vocab.txt, RoBERTa's vocab.json or ALBERT's model, or train one with "
            "`python -m t5x_like.vocabulary --kind=wordpiece` (or byte_bpe, albert)."
        )
    assert isinstance(vocabulary, SpecialTokenVocabulary)  # for the type checker
    return vocabulary


def lowers_case(pieces: Iterable[str], *, settings: Mapping[str, Any]) -> bool:
    """Whether text is lower-cased before it is tokenized by these pieces.

    `do_lower_case` of the tokenizer_config.json beside the file decides. Without it text is
    lower-cased exactly if no piece has an upper-case ASCII letter (special tokens and others in
    square brackets aside), since such a vocabulary could only read "The" as unknown.
    """
    setting = settings.get("do_lower_case")
    if setting is not None:
        return bool(setting)
    upper_case = re.compile(r"(?!\[.*\]$).*[A-Z]", re.DOTALL)
    return not any(map(upper_case.match, pieces))
