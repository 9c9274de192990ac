"""Vocabularies with special tokens, such as [CLS], [SEP] and [MASK].

| who | file | special tokens | text before it is tokenized |
|---|---|---|---|
| BERT (WordPiece) | vocab.txt | `[PAD] [UNK] [CLS] [SEP] [MASK]` | cleaned, split, lower case |
| RoBERTa (bytes) | vocab.json, merges.txt | `<pad> <unk> <s> </s> <mask>` | unchanged |
| ALBERT (unigram) | a .model | `<pad> <unk> [CLS] [SEP] [MASK]` | quotes, accents, lower case |
| any, also LLaMA 3 | tokenizer.json | their names | as the file defines it |
| LLaMA, PaLM | a .model | `<unk> <s> </s>` | unchanged |

The table is about files in folders that do not name a tokenizer's class; if a folder in Hugging
Face's format names it, see `hugging_face`. A special token's name in a text, such as "[MASK]", is
read as that token, except with the vocabularies in the last row. Decoding shows every id: special
tokens by their names (unless they are skipped), an id out of range as unknown. Changes by the
encoding (case, accents, blanks around WordPiece's punctuation) are not undone.
"""

import abc
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from t5x_like.vocabularies.base import Offsets, Vocabulary

BERT_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
END_OF_TEXT = "<|endoftext|>"  # GPT-2's only special token
LLAMA_3_SPECIAL_TOKENS = ("<|begin_of_text|>", "<|end_of_text|>")
ALBERT_SPECIAL_TOKENS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")


class SpecialTokenVocabulary(Vocabulary):
    """A vocabulary whose file names its special tokens.

    `bos_id` and `eos_id` are the ids of [CLS] and [SEP], of <s> and </s>, or of LLaMA 3's begin and
    end of text; GPT-2 has only an end of text.

    Attributes:
        pieces: the V strings of the file.
        special_tokens: {name: id}.

    Args:
        pieces: all pieces, in the order of their ids.
        special_tokens: their names; names that are not pieces are ignored.
        contents: everything that decides how a text is encoded, for equality.
    """

    def __init__(self, pieces: Sequence[str], *, special_tokens: Iterable[str], contents: bytes):
        super().__init__(vocab_size=len(pieces), contents=contents)
        self.pieces = tuple(pieces)
        ids = {piece: number for number, piece in enumerate(self.pieces)}
        self.special_tokens = {name: ids[name] for name in special_tokens if name in ids}
        self.special_ids = tuple(sorted(self.special_tokens.values()))
        self.pad_id = self.padding_id or 0
        self.unk_id = self._first("[UNK]", "<unk>")
        self.cls_id = self._first("[CLS]", "<s>")
        self.sep_id = self._first("[SEP]", "</s>")
        self.mask_id = self._first("[MASK]", "<mask>")
        self.bos_id = self._first("[CLS]", "<s>", LLAMA_3_SPECIAL_TOKENS[0])
        self.eos_id = self._first("[SEP]", "</s>", END_OF_TEXT, LLAMA_3_SPECIAL_TOKENS[1])
        if self.mask_id is not None and self.cls_id is not None and self.sep_id is not None:
            self.prefix_ids, self.suffix_ids = (self.cls_id,), (self.sep_id,)

    def _first(self, *names: str) -> int | None:
        ids = (self.special_tokens[name] for name in names if name in self.special_tokens)
        return next(ids, None)

    @property
    def padding_id(self) -> int | None:
        """The id of the padding token; None if the file has none, and `pad_id` is 0."""
        return self._first("[PAD]", "<pad>")

    @property
    def start_id(self) -> int:
        """The decoder's first token: LLaMA's <s>, the end token of BART and GPT-2, or padding."""
        # If there is a mask, as in BART, <s> begins the encoder's texts rather than the decoder's.
        bos_starts = self.mask_id is None and self.bos_id is not None
        start = self.bos_id if bos_starts else self.eos_id
        return self.pad_id if start is None else start

    @functools.cached_property
    def word_starts(self) -> Bool[np.ndarray, " V"]:
        """Whether each piece begins a word.

        The first token of a text begins a word, too, but byte-level BPE marks a word's beginning
        only by the blank before it, which is missing there.
        """
        special = self.special_tokens
        return np.array([piece in special or self._begins_word(piece) for piece in self.pieces])

    def piece(self, token: int) -> str:
        """Return the piece in the file."""
        return self.pieces[token]

    @abc.abstractmethod
    def _encode_with_offsets(self, text: str) -> tuple[list[int], Offsets]: ...

    @abc.abstractmethod
    def _begins_word(self, piece: str) -> bool: ...


def check_special_tokens(vocabulary: Vocabulary) -> SpecialTokenVocabulary:
    """Return the vocabulary, if it has the special tokens that the objectives of encoders need.

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
    """Return whether text is lower-cased before it is tokenized into these pieces.

    `do_lower_case` in the tokenizer_config.json next to the file decides. Without it, text is
    lower-cased if and only if no piece has an upper-case ASCII letter (apart from pieces in square
    brackets), since such a vocabulary could only read "The" as unknown.
    """
    setting = settings.get("do_lower_case")
    if setting is not None:
        return bool(setting)
    upper_case = re.compile(r"(?!\[.*\]$).*[A-Z]", re.DOTALL)
    return not any(map(upper_case.match, pieces))
