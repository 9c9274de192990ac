"""XLNet's objective: rows that continue each other, an order of prediction, tokens to predict."""

import bisect
import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int

from t5x_like.batches.encoder_rows import SpecialTokens, TextPiece
from t5x_like.names import choose
from t5x_like.objectives import masking
from t5x_like.objectives.grouping import objective_of_rows
from t5x_like.objectives.noise import check_rate
from t5x_like.objectives.objective import Example, Groups, OfGroup, of_masked

FORMS = ("spans", "tail")


def xlnet(
    *,
    form: str = "spans",
    rate: float = 1 / 6,
    longest: int = 5,
    context: int = 6,
    reuse: float = 0.5,
    block: int = 0,
    backward: float = 0.5,
    group: int = 64,
) -> Groups:
    """Predict the last tokens of a random order (Yang et al. 2019, sections 2.3 and 2.5).

        inputs:       the man went to ##wards a store . he bought milk . [SEP] we sang . [SEP] [CLS]
        loss_weights: 1   0   0    1  1       0 0     0 0  1      0    0 0     1  0    0 0     0
        order:        3   0   0    7  4       0 0     0 9  19     9    9 10    17 9    9 15    12
        token_types:  0   0   0    0  0       0 0     0 0  0      0    0 0     1  1    1 1     2

    A row has a first part, which continues the first part of the row before, and a second part: the
    text after it and, in half of the rows, text from elsewhere in the group. `order` is the rank at
    which tokens are seen: the context of a part comes first, with one rank, then each token to
    predict and each special token, with separate ranks; the whole first part precedes the second.

    Each document ends with `<eod>`, which is a token like any other, as in the released code, or
    with [SEP] if the vocabulary has no `<eod>`.

    A row also has `reused`, the number of tokens of its first part; `continued`, 0 if it is the
    first row of its group; and `reversed`, 1 if its text runs from the end of the group to the
    beginning.

    Args:
        form: "spans", as in the released code; "tail", single tokens, all equally likely.
        rate: share of a row's tokens that are predicted, 1 / K: 85 of 512.
        longest: the most tokens of a span; the probability of n is proportional to 1 / n. A span
            begins with a word.
        context: tokens left out around a span, for each of its tokens; if the end is reached too
            early, single tokens fill up the number.
        reuse: share of a row that is its first part.
        block: the order is random within blocks of this many tokens, and blocks follow each other;
            0 for one block per part.
        backward: share of the groups whose text is reversed.
        group: the number of documents read together.

    Raises:
        ValueError: a setting is out of range; when the dataset is built, before anything is read,
            rows have no room, or the vocabulary lacks [CLS], [SEP] or [MASK].
    """
    choose("form of xlnet", form, dict.fromkeys(FORMS))
    check_rate("xlnet", rate=rate)
    if not 0 < reuse < 1:
        raise ValueError(f"xlnet: reuse={reuse} must lie between 0 and 1")
    least = {"longest": (longest, 1), "context": (context, 1), "block": (block, 0)}
    for name, (value, number) in least.items():
        if value < number:
            raise ValueError(f"xlnet: {name}={value} must be {number} or more")
    if not 0 <= backward <= 1:
        raise ValueError(f"xlnet: backward={backward} must be from 0 to 1")

    def rows_for(special: SpecialTokens, length: int) -> OfGroup:
        first = int(length * reuse)
        if first < 1 or length - first < 8:
            raise ValueError(
                f"xlnet: rows of lengths.inputs={length} with reuse={reuse} have {first} and "
                f"{length - first} tokens in their parts; set 1 or more, and 8 or more"
            )
        return PermutedRows(
            special=special,
            length=length,
            first=first,
            spans=Spans(longest, context) if form == "spans" else None,
            rate=rate,
            block=block,
            backward=backward,
        )

    of = of_masked("order", "token_types", "reused", "continued", "reversed")
    return objective_of_rows("xlnet", rows_for, group=group, of=of)


@dataclasses.dataclass(frozen=True)
class Spans:
    """Samples spans to predict, each within a context (zihangdai/xlnet, data_utils.py).

    Attributes:
        longest: the most tokens of a span.
        context: tokens around a span, for each of its tokens.
    """

    longest: int
    context: int

    @functools.cached_property
    def _chances(self) -> list[float]:
        """The cumulative probabilities of the lengths."""
        return [*itertools.accumulate(masking.harmonic(self.longest).tolist())]

    def sample(self, draw: random.Random, starts: Sequence[bool], *, goal: int) -> list[TextPiece]:
        """Return spans of at most `goal` tokens together, in order.

        Args:
            draw: the source of random numbers.
            starts: for each token whether it can begin a span.
        """
        pieces: list[TextPiece] = []
        position = 0
        while goal:
            [size] = draw.choices(range(1, self.longest + 1), cum_weights=self._chances)
            size = min(size, goal)
            around = size * self.context
            before = int(draw.random() * around)
            begin = position + before
            while begin < len(starts) and not starts[begin]:
                begin += 1
            if begin + size > len(starts):
                break
            pieces.append((begin, begin + size))
            goal -= size
            position = begin + size + around - before
        return pieces


@dataclasses.dataclass(frozen=True)
class PermutedText:
    """The text of a group, in the direction in which it is read.

    Attributes:
        tokens: the tokens of all documents, each with its end token.
        ends: the ends of sentences: from 0 to T, increasing.
    """

    tokens: Int[np.ndarray, " T"]
    ends: list[int]

    @classmethod
    def of(
        cls,
        tokens: Int[np.ndarray, " T"],
        lengths: Int[np.ndarray, " S"],
        counts: Int[np.ndarray, " D"],
        *,
        end: int,
    ) -> "PermutedText":
        """Make it from sentence lengths and sentences per document; a document may be empty.

        Args:
            end: the token after each document.
        """
        ends, last = np.cumsum(lengths), np.cumsum(counts)
        last = last[counts > 0]
        tokens = np.insert(tokens, ends[last - 1], end) if len(last) else tokens
        # The end token of a document belongs to its last sentence, as in the released code.
        ends = ends + np.searchsorted(last, np.arange(1, len(ends) + 1), side="right")
        return cls(tokens, [0, *ends.tolist()])

    def reversed(self) -> "PermutedText":
        """Return the same text from its end to its beginning."""
        total = len(self.tokens)
        return PermutedText(self.tokens[::-1], [total - end for end in reversed(self.ends)])


@dataclasses.dataclass(frozen=True)
class PermutedRows:
    """Makes the rows of a group.

    Attributes:
        length, first: tokens of a row and of its first part.
        spans: samples spans; None for single tokens.
        rate, block, backward: see `xlnet`.
    """

    special: SpecialTokens
    length: int
    first: int
    spans: Spans | None
    rate: float
    block: int
    backward: float

    def __call__(
        self,
        tokens: Int[np.ndarray, " T"],
        lengths: Int[np.ndarray, " S"],
        counts: Int[np.ndarray, " D"],
        generator: np.random.Generator,
    ) -> list[Example]:
        """Return the rows of a group."""
        draw = random.Random(int(generator.integers(2**63)))
        end = self.special.sep if self.special.eod is None else self.special.eod
        text = PermutedText.of(tokens, lengths, counts, end=end)
        backward = draw.random() < self.backward
        text = text.reversed() if backward else text
        rows: list[Example] = []
        for reused, a, b in self.plan(text, draw):
            parts = [text.tokens[slice(*reused)], self._second(text, a, b)]
            types = [0] * (reused[1] - reused[0]) + [0] * (a[1] - a[0] + 1)
            types += [1] * (b[1] - b[0] + 1 if b else 0) + [2]
            weights, order = self._predicted(parts, draw, backward=backward)
            joined = np.concatenate(parts)
            row = {
                "inputs": joined,
                "targets": joined,
                "loss_weights": weights,
                "order": order,
                "token_types": np.array(types),
                "reused": np.array([len(parts[0])]),
                "continued": np.array([len(rows) > 0]),
                "reversed": np.array([backward]),
            }
            rows.append({name: value.astype(np.int32) for name, value in row.items()})
        return rows

    def plan(
        self, text: PermutedText, draw: random.Random
    ) -> Iterator[tuple[TextPiece, TextPiece, TextPiece | None]]:
        """Yield the first part, A and B of each row; A may be empty, and B may be None.

        As in the released code, A ends with a sentence. B follows it or is, in half of the rows,
        text from elsewhere; both are cut at their ends to fit.
        """
        ends, total = text.ends, len(text.tokens)
        room = self.length - self.first - 3
        for first in range(0, total, self.first):
            begin = min(first + self.first, total)
            last = min(bisect.bisect_left(ends, begin + room), len(ends) - 1)
            cuts = ends[bisect.bisect_right(ends, begin) : last]
            b: TextPiece | None = None
            a = begin, (draw.choice(cuts) if cuts else ends[last])
            if begin < total:
                if not cuts or draw.random() < 0.5:
                    wanted = max(room - (a[1] - a[0]), 1)
                    b = _elsewhere(ends, first, last, wanted, draw)
                if b is None and cuts:
                    b = a[1], ends[last]
            yield (first, begin), *_cut(a, b, room=room if b else room + 1)

    def _second(
        self, text: PermutedText, a: TextPiece, b: TextPiece | None
    ) -> Int[np.ndarray, " L"]:
        sep, cls = [self.special.sep], [self.special.cls]
        tail = [] if b is None else [text.tokens[slice(*b)], sep]
        return np.concatenate([text.tokens[slice(*a)], sep, *tail, cls]).astype(np.int32)

    def _predicted(
        self, parts: Sequence[Int[np.ndarray, " L"]], draw: random.Random, *, backward: bool
    ) -> tuple[Int[np.ndarray, " L"], Int[np.ndarray, " L"]]:
        """Return the loss weights and the order of a row, from the tokens of its parts."""
        size = sum(map(len, parts))
        goal = round(self.rate * size)
        goals = [math.ceil(goal * len(parts[0]) / size)]
        goals.append(goal - goals[0])
        weights, order, rank = [], [], 0
        for part, goal in zip(parts, goals, strict=True):
            # `<eod>` is predicted like text (data_utils.py, _local_perm).
            special = self.special.is_special[part] & (part != self.special.eod)
            chosen = self._choose(part, special, draw, goal=goal, backward=backward)
            hidden = chosen | special
            blocks = np.arange(len(part)) // (self.block or self.length)
            noise = np.array([draw.random() for _ in part])
            ranks = np.argsort(np.argsort(blocks + noise))
            weights.append(chosen)
            order.append(np.where(hidden, rank + 1 + ranks, rank))
            rank += len(part) + 1
        return np.concatenate(weights), np.concatenate(order)

    def _choose(
        self,
        part: Int[np.ndarray, " L"],
        special: np.ndarray,
        draw: random.Random,
        *,
        goal: int,
        backward: bool,
    ) -> np.ndarray:
        """Choose `goal` tokens to predict, or all of the text if it has fewer; bool [L]."""
        chosen = np.zeros(len(part), bool)
        if self.spans:
            # Spans begin with a word in the direction of the language.
            way = slice(None, None, -1) if backward else slice(None)
            starts = self.special.word_starts[part[way]] & ~special[way]
            pieces = self.spans.sample(draw, starts.tolist(), goal=goal)
            for begin, end in pieces:
                chosen[way][begin:end] = True
            chosen &= ~special
        rest = np.flatnonzero(~chosen & ~special).tolist()
        left = goal - int(chosen.sum())
        chosen[draw.sample(rest, min(left, len(rest)))] = True
        return chosen


def _elsewhere(
    ends: Sequence[int], first: int, last: int, wanted: int, draw: random.Random
) -> TextPiece | None:
    """Return `wanted` tokens, in whole sentences, before token `first` or from sentence `last` on.

    None if there is no sentence.
    """
    before, after = bisect.bisect_right(ends, first) - 1, len(ends) - 1 - last
    if before + after == 0:
        return None
    drawn = int(draw.random() * (before + after))
    begin, limit = (drawn, before) if drawn < before else (drawn - before + last, len(ends) - 1)
    end = min(bisect.bisect_left(ends, ends[begin] + wanted), limit)
    return ends[begin], ends[max(end, begin + 1)]


def _cut(a: TextPiece, b: TextPiece | None, *, room: int) -> tuple[TextPiece, TextPiece | None]:
    """Cut A and B to at most `room` tokens together, the longer text first."""
    sizes = a[1] - a[0], b[1] - b[0] if b else 0
    if sum(sizes) <= room:
        return a, b
    first_size = min(sizes[0], max(room - sizes[1], (room + 1) // 2))
    return (a[0], a[0] + first_size), (b and (b[0], b[0] + min(sizes[1], room - first_size)))
