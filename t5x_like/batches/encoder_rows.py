"""The rows of an encoder, many at once: marks and tokens, words, the text that may be noise."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

Piece = tuple[int, int]  # the first token and the one after the last, in the group


class Planned(NamedTuple):
    """A row to be: its pieces of text in order, and the label of a pair (0 if it has none)."""

    pieces: list[Piece]
    label: int = 0


class Marks:
    """What a vocabulary says of its tokens.

    Attributes:
        cls, sep, mask: ids of [CLS], [SEP] and [MASK].
        special: bool [V], whether an id is a mark, which is never noise.
        ordinary: int32, the other ids, of which random tokens are drawn.
        word_starts: bool [V], whether an id begins a word.
    """

    def __init__(self, vocabulary: Any):
        """Of a vocabulary that has them, as `vocabularies.check_marks` makes sure."""
        self.cls, self.sep, self.mask = vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id
        self.special = np.zeros(vocabulary.vocab_size, bool)
        self.special[list(vocabulary.special_ids)] = True
        self.ordinary = np.flatnonzero(~self.special).astype(np.int32)
        self.word_starts = np.asarray(vocabulary.word_starts)


@dataclasses.dataclass(frozen=True)
class TextRows:
    """Rows of marks and text.

    Attributes:
        tokens: [CLS] first, [SEP] after each piece, 0 from the row's size on.
        token_types: 1 in the second segment of a pair, its [SEP] included, else 0.
        sizes: tokens of each row.
        text: True where a token is no mark.
        firsts: the place in the group of each row's first token of text.
    """

    tokens: Int[np.ndarray, "B L"]
    token_types: Int[np.ndarray, "B L"]
    sizes: Int[np.ndarray, "B"]
    text: Bool[np.ndarray, "B L"]
    firsts: Int[np.ndarray, "B"]


def lay_out(
    tokens: Int[np.ndarray, "T"],
    rows: Sequence[Planned],
    *,
    length: int,
    separators: int,
    marks: Marks,
) -> TextRows:
    """Writes planned rows: [CLS] piece [SEP] piece [SEP] ...

    Args:
        tokens: of the group of documents.
        rows: of pieces which, with their marks, have at most `length` tokens.
        length: L.
        separators: [SEP]s between the segments of a pair; 0 where pieces are no segments, which
            have one between them, and all token types are 0.
        marks: of the vocabulary.
    """
    counts = np.array([len(row.pieces) for row in rows])
    starts, ends = np.array([piece for row in rows for piece in row.pieces]).T
    row_ends = np.cumsum(counts)
    row_of = np.repeat(np.arange(len(rows)), counts)
    order = np.arange(len(starts)) - np.repeat(row_ends - counts, counts)
    after = np.full(len(starts), max(separators, 1))  # marks after each piece
    after[row_ends - 1] = 1
    sizes = ends - starts + after
    total = np.cumsum(sizes) - sizes
    place = row_of * length + 1 + total - np.repeat(total[row_ends - counts], counts)

    out = np.zeros([len(rows), length], np.int32)
    types = np.zeros_like(out)
    out[:, 0] = marks.cls
    flat = _ranges(place, sizes)
    out.reshape(-1)[flat] = marks.sep
    if separators:
        types.reshape(-1)[flat] = np.repeat(order > 0, sizes)
    out.reshape(-1)[_ranges(place, ends - starts)] = tokens[_ranges(starts, ends - starts)]
    row_sizes = 1 + np.add.reduceat(sizes, row_ends - counts)
    text = ~marks.special[out] & (np.arange(length) < row_sizes[:, None])
    return TextRows(out, types, row_sizes.astype(np.int32), text, starts[row_ends - counts])


def _ranges(starts: Int[np.ndarray, "N"], sizes: Int[np.ndarray, "N"]) -> Int[np.ndarray, "total"]:
    """All numbers from each start on, as many as each size, one range after the other."""
    before = np.cumsum(sizes) - sizes
    return np.arange(sizes.sum()) + np.repeat(starts - before, sizes)


@dataclasses.dataclass(frozen=True)
class Units:
    """What spans are counted in, words or tokens, W of them at most in each row.

    Attributes:
        sizes: tokens of each unit; more than a row has where there is none.
        runs: equal for units with nothing but text between them.
        counts: units of each row.
        of_token: the unit of each token, where `text` is.
        text: True on the tokens of units.
    """

    sizes: Int[np.ndarray, "B W"]
    runs: Int[np.ndarray, "B W"]
    counts: Int[np.ndarray, "B"]
    of_token: Int[np.ndarray, "B L"]
    text: Bool[np.ndarray, "B L"]


def units(starts: Bool[np.ndarray, "B L"], *, text: Bool[np.ndarray, "B L"]) -> Units:
    """The units that begin where `starts` says, and wherever text begins."""
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
