"""Lay out rows of an encoder, many at once: special tokens, text, words, corruptible positions."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from t5x_like.vocabularies import Vocabulary, check_special_tokens

TextPiece = tuple[int, int]  # start and end (exclusive) in the tokens of a group of documents


class Planned(NamedTuple):
    """The plan of a row.

    Attributes:
        pieces: the pieces of text, in order.
        label: the label of a pair; 0 for a row without one.
        segments: the token types of the first and of the second segment.
    """

    pieces: list[TextPiece]
    label: int = 0
    segments: tuple[int, int] = (0, 1)


class SpecialTokens:
    """The special tokens of an encoder's vocabulary, and properties of its ids as arrays.

    Attributes:
        cls, sep, mask: the ids of [CLS], [SEP] and [MASK].
        eod: the id of `<eod>`, XLNet's token at the end of a document; None if there is none.
        is_special: bool [V], whether an id is a special token, which is never corrupted.
        ordinary: int32, the other ids, from which random tokens are sampled.
        word_starts: bool [V], whether an id begins a word.

    Raises:
        ValueError: the vocabulary lacks [CLS], [SEP] or [MASK].
    """

    def __init__(self, vocabulary: Vocabulary):
        with_special = check_special_tokens(vocabulary)
        self.cls, self.sep, self.mask = map(
            with_special.required_id, ("cls_id", "sep_id", "mask_id")
        )
        self.eod = next(
            (token for token in with_special.special_ids if with_special.piece(token) == "<eod>"),
            None,
        )
        self.is_special = np.zeros(with_special.vocab_size, bool)
        self.is_special[list(with_special.special_ids)] = True
        self.ordinary = np.flatnonzero(~self.is_special).astype(np.int32)
        self.word_starts = np.asarray(with_special.word_starts)


@dataclasses.dataclass(frozen=True)
class TextRows:
    """Rows of special tokens and text.

    Attributes:
        tokens: [CLS] first, [SEP] after each piece, 0 on padding.
        token_types: the types of a pair's two segments, each with its [SEP]; 0 on padding.
        sizes: the number of tokens of each row.
        text: True where a token is neither a special token nor padding.
        firsts: the position in the group of each row's first token of text.
    """

    tokens: Int[np.ndarray, "B L"]
    token_types: Int[np.ndarray, "B L"]
    sizes: Int[np.ndarray, " B"]
    text: Bool[np.ndarray, "B L"]
    firsts: Int[np.ndarray, " B"]


def lay_out(
    tokens: Int[np.ndarray, " T"],
    rows: Sequence[Planned],
    *,
    length: int,
    separators: int,
    special: SpecialTokens,
) -> TextRows:
    """Lay out planned rows: [CLS] piece [SEP] piece [SEP] ...

    Args:
        tokens: all tokens of the group of documents.
        rows: plans with at most `length` tokens each, including special tokens.
        length: tokens per row, L.
        separators: the number of [SEP]s between the segments of a pair; 0 if pieces are not
            segments: one [SEP] is then between them, and all token types are 0.
        special: the special tokens of the vocabulary.
    """
    counts = np.array([len(row.pieces) for row in rows])
    starts, ends = np.array([piece for row in rows for piece in row.pieces]).T
    row_ends = np.cumsum(counts)
    row_of = np.repeat(np.arange(len(rows)), counts)
    order = np.arange(len(starts)) - np.repeat(row_ends - counts, counts)
    after = np.full(len(starts), max(separators, 1))  # special tokens after each piece
    after[row_ends - 1] = 1
    sizes = ends - starts + after
    total = np.cumsum(sizes) - sizes
    offsets = row_of * length + 1 + total - np.repeat(total[row_ends - counts], counts)

    out = np.zeros([len(rows), length], np.int32)
    types = np.zeros_like(out)
    out[:, 0] = special.cls
    flat = _ranges(offsets, sizes)
    out.reshape(-1)[flat] = special.sep
    if separators:
        segments = np.array([row.segments for row in rows])
        types[:, 0] = segments[:, 0]
        types.reshape(-1)[flat] = np.repeat(segments[row_of, np.minimum(order, 1)], sizes)
    out.reshape(-1)[_ranges(offsets, ends - starts)] = tokens[_ranges(starts, ends - starts)]
    row_sizes = 1 + np.add.reduceat(sizes, row_ends - counts)
    text = ~special.is_special[out] & (np.arange(length) < row_sizes[:, None])
    return TextRows(out, types, row_sizes.astype(np.int32), text, starts[row_ends - counts])


def _ranges(
    starts: Int[np.ndarray, " N"], sizes: Int[np.ndarray, " N"]
) -> Int[np.ndarray, " total"]:
    """Return the numbers start, start + 1, ... of each range, one range after the other."""
    before = np.cumsum(sizes) - sizes
    return np.arange(sizes.sum()) + np.repeat(starts - before, sizes)


@dataclasses.dataclass(frozen=True)
class Units:
    """The units in which spans are counted, words or tokens, at most W in each row.

    Attributes:
        sizes: the number of tokens of each unit; L + 1 where there is no unit.
        runs: a number that is equal for units with only text between them.
        counts: the number of units of each row.
        of_token: the unit that each token belongs to, where `text` is True.
        text: True on the tokens of units.
    """

    sizes: Int[np.ndarray, "B W"]
    runs: Int[np.ndarray, "B W"]
    counts: Int[np.ndarray, " B"]
    of_token: Int[np.ndarray, "B L"]
    text: Bool[np.ndarray, "B L"]


def units(starts: Bool[np.ndarray, "B L"], *, text: Bool[np.ndarray, "B L"]) -> Units:
    """Return the units that begin where `starts` is True, and wherever text begins."""
    rows, length = text.shape
    begins = text.copy()
    begins[:, 1:] &= starts[:, 1:] | ~text[:, :-1]
    of_token = np.cumsum(begins, axis=1) - 1
    counts = begins.sum(axis=1)
    width = max(int(counts.max(initial=0)), 1)
    flat = np.arange(rows)[:, None] * width + of_token
    sizes = np.bincount(flat[text], minlength=rows * width).reshape(rows, width)
    runs = np.full([rows, width], -1)
    runs.reshape(-1)[flat[begins]] = np.cumsum(~text, axis=1)[begins]
    return Units(np.where(sizes > 0, sizes, length + 1), runs, counts, of_token, text)
