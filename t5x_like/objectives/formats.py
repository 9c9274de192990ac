"""Plan the rows of an encoder: the stretches of text in each row, and its label.

A format plans the rows of a group of documents; it reads the ends of sentences and documents, but
no tokens. `batches.encoder_rows.lay_out` then writes special tokens and text, for all rows at once.
"""

import bisect
import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Int

from t5x_like.batches.encoder_rows import Planned, TextPiece


@dataclasses.dataclass(frozen=True)
class DocumentGroup:
    """A group of documents that are not empty.

    Attributes:
        tokens: the tokens of all documents, one after the other.
        ends: S + 1 offsets of sentences; `ends[i]` is the first token of sentence i.
        bounds: the first sentence of each document, and the number of all sentences: D + 1.
    """

    tokens: Int[np.ndarray, " T"]
    ends: list[int]
    bounds: list[int]

    @classmethod
    def of(
        cls,
        tokens: Int[np.ndarray, " T"],
        sentence_lengths: Int[np.ndarray, " S"],
        sentences: Int[np.ndarray, " D"],
        *,
        longest: int,
    ) -> "DocumentGroup":
        """Make it from sentence lengths and sentences per document; cut those over `longest`."""
        parts = -(-sentence_lengths // longest)
        first = np.cumsum(parts) - parts
        cut = np.full(parts.sum(), longest)
        full = parts > 0
        last = (first + parts - 1)[full]
        cut[last] = (sentence_lengths - (parts - 1) * longest)[full]
        splits = np.concatenate([[0], np.cumsum(sentences)])
        bounds = np.concatenate([[0], np.cumsum(parts)])[splits]
        ends = np.concatenate([[0], np.cumsum(cut)])
        return cls(tokens, ends.tolist(), sorted(set(bounds.tolist())))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def numbers(self, tokens: Int[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
        """Return the documents that contain some tokens, given their positions in the group."""
        starts = np.array(self.ends)[self.bounds]
        return np.searchsorted(starts, tokens, side="right") - 1

    def reach(self, first: int, *, tokens: int, last: int) -> int:
        """Return the end of the fewest sentences from `first` with `tokens` or more, or `last`."""
        reached = bisect.bisect_left(self.ends, self.ends[first] + tokens, first + 1, last + 1)
        return min(reached, last)

    def after(self, token: int, first: int, last: int) -> int:
        """Return the sentence that begins at or next after a token, between `first` and `last`."""
        return bisect.bisect_left(self.ends, token, first + 1, last - 1)

    def piece(self, first: int, after_last: int) -> TextPiece:
        """Return the token range of some sentences."""
        return self.ends[first], self.ends[after_last]


# (documents, the index of one, its first sentence, the end of its sentences, the tokens wanted,
# random numbers) -> (a row, the sentence with which the next row begins).
Pairing = Callable[[DocumentGroup, int, int, int, int, random.Random], tuple[Planned, int]]
RowPlan = Callable[[DocumentGroup, int, Sequence[random.Random]], list[Planned]]


@dataclasses.dataclass(frozen=True)
class Format:
    """How rows are made.

    Attributes:
        plan: (documents, tokens that fit into a row, a source of random numbers for each document)
            -> rows.
        separators: the number of separators within a pair; 0 if rows are not pairs.
    """

    plan: RowPlan
    separators: int = 0

    @property
    def special_count(self) -> int:
        """The fewest special tokens of a row: one before it, one after it, those within a pair."""
        return 2 + self.separators


def next_or_random(
    documents: DocumentGroup, number: int, first: int, last: int, wanted: int, draw: random.Random
) -> tuple[Planned, int]:
    """Plan a pair where B follows A (label 0), or is from another document (1): BERT, task 2.

    A is a random number of the sentences, at least one. If there is only one, B is random, as in
    BERT's code, so that short documents have random pairs in more than half of the cases. The text
    that a random B replaces begins the next row. A group of one document has only real pairs.
    """
    end = _part(first, last, draw)
    if len(documents) > 1 and (last - first == 1 or draw.random() < 0.5):
        start, stop = documents.piece(first, end)
        other = _elsewhere(documents, number, wanted - (stop - start), draw)
        return Planned([(start, stop), other], label=1), end
    return Planned(_in_two(documents, first, end, last)), last


def next_or_previous(
    documents: DocumentGroup, number: int, first: int, last: int, wanted: int, draw: random.Random
) -> tuple[Planned, int]:
    """Plan a pair where B follows A (label 0), or precedes it (1): ALBERT's order, section 3.1.

    A chunk of one sentence is cut in the middle.
    """
    del number, wanted
    pieces = _in_two(documents, first, _part(first, last, draw), last)
    swapped = draw.random() < 0.5
    return Planned(pieces[::-1] if swapped else pieces, label=int(swapped)), last


def next_previous_or_random(
    documents: DocumentGroup, number: int, first: int, last: int, wanted: int, draw: random.Random
) -> tuple[Planned, int]:
    """Plan a pair where B follows A (0), precedes it (1), or is random (2): StructBERT, 2.2.2.

    Each label has a third of the pairs, and a random B is from another document; a chunk of one
    sentence is cut in the middle. A group of one document only has the first two labels.
    """
    label = int(draw.random() * (3 if len(documents) > 1 else 2))
    end = _part(first, last, draw)
    if label < 2:
        pieces = _in_two(documents, first, end, last)
        return Planned(pieces[::-1] if label else pieces, label=label), last
    start, stop = documents.piece(first, end)
    other = _elsewhere(documents, number, wanted - (stop - start), draw)
    return Planned([(start, stop), other], label=2), end


def one_or_two(
    documents: DocumentGroup, number: int, first: int, last: int, wanted: int, draw: random.Random
) -> tuple[Planned, int]:
    """Plan two consecutive segments of similar length, or one segment in a tenth of the rows.

    As in ELECTRA's code, without a label.
    """
    del number, wanted
    if last - first == 1 or draw.random() < 0.1:
        return Planned([documents.piece(first, last)]), last
    half = (documents.ends[first] + documents.ends[last]) // 2
    return Planned(_in_two(documents, first, documents.after(half, first, last), last)), last


# UniLM's language models, with the token types of the first and the second segment.
SEGMENTS = {
    "bidirectional": (0, 1),
    "sequence_to_sequence": (4, 5),
    "left_to_right": (2, 2),
    "right_to_left": (3, 3),
}


def unified(
    documents: DocumentGroup,
    number: int,
    first: int,
    last: int,
    wanted: int,
    draw: random.Random,
    *,
    shares: Mapping[str, float],
) -> tuple[Planned, int]:
    """Plan a row for one of four language models, sampled by their shares (UniLM, section 2.3).

    Bidirectional rows are BERT's pairs with its label. In sequence-to-sequence rows B follows A;
    one-way language models read a single segment. All but bidirectional rows have the label 0.
    """
    [kind] = draw.choices(list(shares), list(shares.values()))
    if kind == "bidirectional":
        row, end = next_or_random(documents, number, first, last, wanted, draw)
    elif kind == "sequence_to_sequence":
        row, end = Planned(_in_two(documents, first, _part(first, last, draw), last)), last
    else:
        row, end = Planned([documents.piece(first, last)]), last
    return row._replace(segments=SEGMENTS[kind]), end


def segment_pairs(
    documents: DocumentGroup,
    room: int,
    draws: Sequence[random.Random],
    *,
    pairing: Pairing,
    short_rate: float,
) -> list[Planned]:
    """Plan rows of as many sentences as fill them, in two segments, then cut to fit (BERT, A.2).

    With probability `short_rate` a row gets a random target of 2 tokens or more instead, so that
    the model also sees short rows.
    """
    rows = []
    for number, draw in enumerate(draws):
        first, last = documents.bounds[number], documents.bounds[number + 1]
        while first < last:
            wanted = 2 + int(draw.random() * (room - 1)) if draw.random() < short_rate else room
            end = documents.reach(first, tokens=wanted, last=last)
            row, first = pairing(documents, number, first, end, wanted, draw)
            rows.append(row._replace(pieces=cut_to_fit(row.pieces, most=room, draw=draw)))
    return rows


def sentence_pairs(
    documents: DocumentGroup, room: int, draws: Sequence[random.Random]
) -> list[Planned]:
    """Plan pairs of single sentences, adjacent or from two documents (RoBERTa, section 4.2)."""
    rows = []
    for number, draw in enumerate(draws):
        first, last = documents.bounds[number], documents.bounds[number + 1]
        while first < last:
            end = min(first + 2, last)
            row, first = next_or_random(documents, number, first, end, 1, draw)
            rows.append(row._replace(pieces=cut_to_fit(row.pieces, most=room, draw=draw)))
    return rows


def full_sentences(
    documents: DocumentGroup, room: int, draws: Sequence[random.Random]
) -> list[Planned]:
    """Plan rows full of sentences, across the ends of documents (RoBERTa, section 4.2)."""
    del draws
    return _filled(documents, room, range(len(documents)))


def doc_sentences(
    documents: DocumentGroup, room: int, draws: Sequence[random.Random]
) -> list[Planned]:
    """Plan rows full of sentences of one document; its last row may be short (RoBERTa, 4.2)."""
    del draws
    return [row for number in range(len(documents)) for row in _filled(documents, room, [number])]


def cut_to_fit(pieces: list[TextPiece], *, most: int, draw: random.Random) -> list[TextPiece]:
    """Cut one or two pieces to at most `most` tokens, the longer piece first (BERT's code).

    Each removed token is taken from the front or from the end, with equal probability.
    """
    sizes = [end - start for start, end in pieces]
    if sum(sizes) <= most:
        return pieces
    if len(pieces) == 1:
        return [_cut(pieces[0], most, draw)]
    first_size = min(sizes[0], max(most - sizes[1], (most + 1) // 2))
    return [_cut(pieces[0], first_size, draw), _cut(pieces[1], most - first_size, draw)]


def _cut(piece: TextPiece, size: int, draw: random.Random) -> TextPiece:
    start, end = piece
    surplus = end - start - size
    front = draw.getrandbits(surplus).bit_count() if surplus else 0  # a coin toss for each token
    return start + front, start + front + size


def _part(first: int, last: int, draw: random.Random) -> int:
    """Return where to divide some sentences: after at least one, before the last if possible."""
    return first + 1 + int(draw.random() * (last - first - 1))


def _in_two(documents: DocumentGroup, first: int, end: int, last: int) -> list[TextPiece]:
    """Divide sentences at `end`; if none is left after it, cut all text into two halves."""
    if end < last:
        return [documents.piece(first, end), documents.piece(end, last)]
    start, stop = documents.piece(first, last)
    middle = (start + stop + 1) // 2
    return [(start, middle), (middle, stop)]


def _elsewhere(
    documents: DocumentGroup, number: int, wanted: int, draw: random.Random
) -> TextPiece:
    """Return `wanted` tokens, in whole sentences, from a random position in another document."""
    other = int(draw.random() * (len(documents) - 1))
    other += other >= number
    first, last = documents.bounds[other], documents.bounds[other + 1]
    first += int(draw.random() * (last - first))
    return documents.piece(first, documents.reach(first, tokens=max(wanted, 1), last=last))


def _filled(documents: DocumentGroup, room: int, numbers: Sequence[int]) -> list[Planned]:
    """Plan rows of whole sentences in order, with a separator between two documents."""
    rows: list[Planned] = []
    pieces: list[TextPiece] = []
    left = room
    for number in numbers:
        first, last = documents.bounds[number], documents.bounds[number + 1]
        while first < last:
            limit = documents.ends[first] + left
            end = bisect.bisect_right(documents.ends, limit, first, last + 1) - 1
            if end > first:
                pieces.append(documents.piece(first, end))
                left -= documents.ends[end] - documents.ends[first] + 1
                first = end
            if first < last:
                rows.append(Planned(pieces))
                pieces, left = [], room
    return [*rows, Planned(pieces)] if pieces else rows
