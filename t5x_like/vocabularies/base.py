"""The interface of vocabularies: text to token ids and back, and the ids of special tokens."""

import abc
import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

Offsets = list[tuple[int, int]]  # of each token: the range [start, end) of its characters


class Vocabulary(abc.ABC):
    """Converts text to token ids and back; two vocabularies with equal contents are equal.

    Attributes:
        vocab_size: the number of ids, V, including sentinels.
        extra_ids: the number of ids that are sentinels, after the file's pieces.
        pad_id: the id of padding in a batch; 0 if the file has no padding token.
        unk_id: the id of the unknown token. This and the following ids are None if the file lacks
            the token.
        bos_id, eos_id: the ids that begin and end a text.
        cls_id, sep_id, mask_id: the ids of [CLS], [SEP] and [MASK], or of <s>, </s> and <mask>.
        special_ids: the ids of all special tokens, in order. An objective never corrupts them
            and never samples them as random tokens.
        prefix_ids, suffix_ids: the ids that an encoder reads before and after a text, according to
            the tokenizer.
    """

    pad_id: int = 0
    unk_id: int | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    cls_id: int | None = None
    sep_id: int | None = None
    mask_id: int | None = None
    special_ids: tuple[int, ...] = ()
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()

    def __init__(self, *, vocab_size: int, contents: bytes, extra_ids: int = 0):
        """Set the sizes; `contents` decides how a text is encoded, for equality."""
        self.vocab_size, self.extra_ids = vocab_size, extra_ids
        self.digest = hashlib.sha256(contents).hexdigest()

    @property
    def targets(self) -> "Vocabulary":
        """The vocabulary of a model's outputs: this vocabulary, or the target language's."""
        return self

    @property
    def class_last(self) -> bool:
        """Whether the tokenizer ends a text with [CLS], as XLNet's does."""
        return self.cls_id is not None and self.suffix_ids[-1:] == (self.cls_id,)

    @property
    def padding_id(self) -> int | None:
        """The id of the padding token; None if the file has none, and `pad_id` is 0."""
        return self.pad_id

    @property
    def start_id(self) -> int:
        """The token that a decoder reads before a text; padding, as in T5, by default."""
        return self.pad_id

    @property
    def sentinels(self) -> int:
        """The number of ids that can each stand for a span that was removed from a text."""
        return self.extra_ids

    @property
    def first_sentinel(self) -> int:
        """The id that stands for the first span; the ids of further spans count down from it."""
        return self.vocab_size - 1

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """Tokenize a text, without an end-of-sequence token."""

    def encode_continued(self, prompt: str, continuation: str) -> tuple[list[int], list[int]]:
        """Tokenize a prompt and the text that a decoder writes after it.

        Both are tokenized together, so that the continuation starts with a token that the model
        would generate, and not with SentencePiece's "▁" of a new text; a space at the end of the
        prompt becomes a part of this token. If the continuation would change the prompt's last
        token, the two are tokenized separately.
        """
        before = self.encode(prompt.rstrip(" "))
        both = self.encode(prompt + continuation)
        continues = both[: len(before)] == before
        return before, both[len(before) :] if continues else self.encode(continuation)

    def encode_with_offsets(self, text: str) -> tuple[list[int], Offsets]:
        """Tokenize a text into ids [L], and return the range of characters of each, too.

        The ranges exclude blanks before and after a word; a token of blanks has an empty range.

        Raises:
            ValueError: vocabularies of this kind do not return the ranges.
        """
        ids, ranges = self._encode_with_offsets(text)
        return ids, [_without_blanks(text, *span) for span in ranges]

    def _encode_with_offsets(self, text: str) -> tuple[list[int], Offsets]:
        raise ValueError(f"vocabulary={self} does not return the characters of each token")

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """Detokenize ids [L].

        Args:
            ids: the ids. T5's pieces, bytes and Marian's pieces are decoded up to the first end of
                sequence, all others to the last id.
            skip_special_tokens: whether to leave out special tokens, including sentinels and the
                unknown token, as transformers does. Otherwise they are decoded as their names.
        """
        until_end = self._until_end(to_list(ids))
        return self._decode(self._without_special(until_end) if skip_special_tokens else until_end)

    def _without_special(self, ids: list[int]) -> list[int]:
        """Return the ids that are not special tokens."""
        skipped = frozenset(self.special_ids)
        return [number for number in ids if number not in skipped]

    def _until_end(self, ids: list[int]) -> list[int]:
        """Return the ids that are decoded."""
        return ids

    @abc.abstractmethod
    def _decode(self, ids: Sequence[int]) -> str: ...

    def required_id(self, name: str) -> int:
        """Return the id of a special token, such as "eos_id"; raise ValueError if it is None."""
        number: int | None = getattr(self, name)
        if number is None:
            raise ValueError(f"vocabulary={self} has no {name}: use one with this special token")
        return number

    def piece(self, token: int) -> str:
        """Return the name of a token, by default its text."""
        return self.decode([token])

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.vocab_size}, sha256={self.digest[:12]})"


def _without_blanks(text: str, start: int, end: int) -> tuple[int, int]:
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    return start, start + len(part.strip())


def to_list(ids: Iterable[int]) -> list[int]:
    """Convert ids [L] in a list, a NumPy or JAX array or a TensorFlow tensor to Python integers."""
    # Iterating over a tensor would be hundreds of times slower.
    return np.asarray(ids, np.int64).tolist()
