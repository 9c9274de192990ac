"""A labelled text as rows of an encoder: its marks, its segments, and what does not fit in a row.

BERT's rows are [CLS] a [SEP] b [SEP] with the segments 0 and 1, RoBERTa's <s> a </s></s> b </s>
without segments; which of the two it is, the vocabulary's marks say. Training, evaluation and
prediction all make their rows here.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from t5x_like import vocabularies
from t5x_like.batches.encoder_rows import Marks, Piece, Planned, TextRows, lay_out
from t5x_like.vocabularies.special_tokens import MarkedVocabulary

STRIDE, LONGEST_QUESTION = 128, 64  # tokens, as in BERT's code for SQuAD


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of an encoder.

    Attributes:
        tokens: with the marks.
        token_types: 1 in the second segment, in a vocabulary like BERT's.
    """

    tokens: Int[np.ndarray, "L"]
    token_types: Int[np.ndarray, "L"]


@dataclasses.dataclass(frozen=True)
class Window:
    """A question with a part of its context.

    Attributes:
        row: both.
        first: the place in the row of the context's first token here.
        offsets: the characters of the context that each of its tokens here stands for: the first,
            and the one after the last.
    """

    row: Row
    first: int
    offsets: Int[np.ndarray, "C 2"]

    def places(self, start: int, end: int) -> tuple[int, int]:
        """The first and last token of the characters from `start` to before `end`.

        (0, 0) if this window does not have them all.
        """
        if start >= end or not len(self.offsets):
            return 0, 0
        first = int(np.searchsorted(self.offsets[:, 1], start, side="right"))
        last = int(np.searchsorted(self.offsets[:, 0], end, side="left")) - 1
        begins_before = self.offsets[0, 0] > start
        if begins_before or self.offsets[-1, 1] < end or first > last:
            return 0, 0
        return self.first + first, self.first + last

    def characters(self, first: int, last: int) -> tuple[int, int]:
        """The characters of the context from a token of the row to another: the inverse."""
        offsets = self.offsets[first - self.first : last - self.first + 1]
        return int(offsets[0, 0]), int(offsets[-1, 1])


class RowWriter:
    """Writes texts as rows of at most so many tokens.

    Raises:
        ValueError: a vocabulary without marks, or rows that have no room for text between them.
    """

    def __init__(self, vocabulary: MarkedVocabulary, *, length: int):
        vocabularies.check_marks(vocabulary)
        self._vocabulary, self._length = vocabulary, length
        self._marks = Marks(vocabulary)
        # RoBERTa has a second mark between segments, and no other sign of them.
        self._separators = 2 if vocabulary.pieces[vocabulary.sep_id] == "</s>" else 1
        if length < 8:
            raise ValueError(f"lengths.inputs={length}: rows of labelled text need 8 or more")

    def of_text(self, text: str, second: str | None = None) -> Row:
        """A text, or two of which the longer one loses its end first."""
        texts = [text] if second is None else [text, second]
        ids = [self._vocabulary.encode(one) for one in texts]
        if second is None:
            sizes = [min(len(ids[0]), self._length - 2)]
        else:
            room = self._length - 2 - self._separators
            first = min(len(ids[0]), max(room - len(ids[1]), (room + 1) // 2))
            sizes = [first, min(len(ids[1]), room - first)]
        pieces: list[Piece] = []
        tokens: list[int] = []
        for one, size in zip(ids, sizes, strict=True):
            pieces.append((len(tokens), len(tokens) + size))
            tokens += one[:size]
        return self._write(tokens, [pieces])[0]

    def of_words(self, words: Sequence[str]) -> tuple[Row, Int[np.ndarray, "W"]]:
        """Words as one text, and the place of each one's first token, 0 where it has none here.

        A word has none if the row ends before it, or if nothing is left of it in the vocabulary.
        """
        ids, offsets = self._vocabulary.encode_with_offsets(" ".join(words))
        size = min(len(ids), self._length - 2)
        lengths = np.array([len(word) + 1 for word in words], np.int64)
        ends = np.cumsum(lengths) - 1
        starts = ends + 1 - lengths
        begins = np.array([begin for begin, _ in offsets[:size]], np.int64)
        first = np.searchsorted(begins, starts)
        found = np.append(begins, np.iinfo(np.int64).max)[first] < ends
        row = self._write(ids, [[(0, size)]])[0]
        return row, np.where(found, 1 + first, 0).astype(np.int32)

    def windows(
        self,
        question: str,
        context: str,
        *,
        stride: int = STRIDE,
        longest_question: int = LONGEST_QUESTION,
    ) -> list[Window]:
        """A question with each part of a context that is too long for a row (Devlin et al., 4.2).

        Args:
            stride: tokens of the context from the start of a part to that of the next.
            longest_question: tokens of the question, which loses its end.
        """
        asked = self._vocabulary.encode(question)[:longest_question]
        ids, offsets = self._vocabulary.encode_with_offsets(context)
        room = self._length - 2 - self._separators - len(asked)
        step = min(stride, room)
        starts = [0, *range(step, max(len(ids) - room + step, 0), step)]
        parts = [(start, min(start + room, len(ids))) for start in starts]
        base = len(asked)
        rows = self._write([*asked, *ids], [[(0, base), (base + a, base + b)] for a, b in parts])
        ranges = np.array(offsets, np.int32).reshape(-1, 2)
        first = 1 + base + self._separators
        return [Window(row, first, ranges[a:b]) for row, (a, b) in zip(rows, parts, strict=True)]

    def check_windows(self, *, stride: int, longest_question: int) -> None:
        """Makes sure that there is room for a context.

        Raises:
            ValueError: there is not, or a setting is below 1.
        """
        if stride < 1 or longest_question < 1:
            raise ValueError(
                f"question_answering: stride={stride} and longest_question={longest_question} "
                "must be 1 token or more"
            )
        least = longest_question + 2 + self._separators + 8
        if self._length < least:
            raise ValueError(
                f"lengths.inputs={self._length}: with longest_question={longest_question} rows "
                f"need {least} tokens or more, to have some of the context"
            )

    def _write(self, tokens: Sequence[int], rows: Sequence[Sequence[Piece]]) -> list[Row]:
        laid_out: TextRows = lay_out(
            np.array(tokens, np.int32),
            [Planned(list(pieces)) for pieces in rows],
            length=self._length,
            separators=self._separators,
            marks=self._marks,
        )
        types = laid_out.token_types if self._separators == 1 else np.zeros_like(laid_out.tokens)
        return [
            Row(laid_out.tokens[number, :size], types[number, :size])
            for number, size in enumerate(laid_out.sizes)
        ]
