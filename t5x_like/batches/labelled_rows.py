"""Write labelled text as rows: special tokens, segments, truncation, windows.

For encoders (`RowWriter`), for networks that read words by their characters (`WordRowWriter`), and
for a decoder with an extract token (Radford et al. 2018, section 3.3).
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int

from t5x_like.batches.encoder_rows import Planned, SpecialTokens, TextPiece, TextRows, lay_out
from t5x_like.vocabularies import Vocabulary, check_special_tokens
from t5x_like.vocabularies.words import END, START, check_words, spell_all

STRIDE, LONGEST_QUESTION = 128, 64  # tokens, as in BERT's code for SQuAD
CLASS_SEGMENT = 2  # the segment of a [CLS] at the end of a row, as in XLNet's code


@dataclasses.dataclass(frozen=True)
class EncoderRow:
    """A row of an encoder.

    Attributes:
        tokens: the ids, including special tokens.
        token_types: 1 in the second segment for vocabularies like BERT's, and 2 on a [CLS] at the
            end; otherwise 0.
    """

    tokens: Int[np.ndarray, " L"]
    token_types: Int[np.ndarray, " L"]

    @property
    def features(self) -> dict[str, np.ndarray]:
        """Return the features of an example, aligned with its tokens."""
        return {"inputs": self.tokens, "token_types": self.token_types}


@dataclasses.dataclass(frozen=True)
class Window:
    """A question with a part of its context.

    Attributes:
        row: the question and the part, as one row.
        first: the position in the row of the part's first token.
        offsets: the character range in the context of each token of the part.
        nothing: the position in the row of [CLS], which stands for no answer.
    """

    row: EncoderRow
    first: int
    offsets: Int[np.ndarray, "C 2"]
    nothing: int

    @property
    def context(self) -> Int[np.ndarray, " C"]:
        """Return the positions in the row of the part's tokens."""
        return np.arange(self.first, self.first + len(self.offsets))

    def places(self, start: int, end: int) -> tuple[int, int]:
        """Return the first and last token in the row of the context's characters [start, end).

        Twice `nothing` if this window does not contain all of them.
        """
        if start >= end or not len(self.offsets):
            return self.nothing, self.nothing
        first = int(np.searchsorted(self.offsets[:, 1], start, side="right"))
        last = int(np.searchsorted(self.offsets[:, 0], end, side="left")) - 1
        begins_before = self.offsets[0, 0] > start
        if begins_before or self.offsets[-1, 1] < end or first > last:
            return self.nothing, self.nothing
        return self.first + first, self.first + last

    def characters(self, first: int, last: int) -> tuple[int, int]:
        """Return the character range from one token of the row to another; inverts `places`."""
        offsets = self.offsets[first - self.first : last - self.first + 1]
        return int(offsets[0, 0]), int(offsets[-1, 1])


class RowWriter:
    """Writes texts as rows of at most `length` tokens: `[CLS] A [SEP] B [SEP]`.

    With a vocabulary whose tokenizer puts `[CLS]` last (`Vocabulary.suffix_ids`), as XLNet's, rows
    are `A [SEP] B [SEP] [CLS]`.

    Raises:
        ValueError: the vocabulary lacks `[CLS]`, `[SEP]` or `[MASK]`, or rows are too short.
    """

    def __init__(self, vocabulary: Vocabulary, *, length: int):
        self._vocabulary, self._length = check_special_tokens(vocabulary), length
        self._special = SpecialTokens(vocabulary)
        # RoBERTa has a second </s> between segments, and no token types.
        self._separators = 2 if self._vocabulary.pieces[self._special.sep] == "</s>" else 1
        self._class_last = vocabulary.class_last
        self._begin = 0 if self._class_last else 1  # the position of the first text
        if length < 8:
            raise ValueError(
                f"lengths.inputs={length}: rows of labelled text need 8 tokens or more"
            )

    def of_text(self, text: str, second: str | None = None) -> EncoderRow:
        """Return the row of one text or a pair; a pair too long loses tokens of its longer text."""
        texts = [text] if second is None else [text, second]
        ids = [self._vocabulary.encode(part) for part in texts]
        if second is None:
            sizes = [min(len(ids[0]), self._length - 2)]
        else:
            room = self._length - 2 - self._separators
            first = min(len(ids[0]), max(room - len(ids[1]), (room + 1) // 2))
            sizes = [first, min(len(ids[1]), room - first)]
        pieces: list[TextPiece] = []
        tokens: list[int] = []
        for text_ids, size in zip(ids, sizes, strict=True):
            pieces.append((len(tokens), len(tokens) + size))
            tokens += text_ids[:size]
        return self._write(tokens, [pieces])[0]

    def of_choices(
        self, choices: Sequence[str], text: str, second: str | None = None
    ) -> list[EncoderRow]:
        """Return a row for each choice: text and choice (Devlin et al. 2018, section 4.4).

        Args:
            second: the beginning of the second segment, before the choice: a question, as in RACE,
                or the start of a sentence that the choice ends, as in SWAG.
        """
        before = [] if second is None else [second]
        return [self.of_text(text, " ".join([*before, choice])) for choice in choices]

    def of_words(self, words: Sequence[str]) -> tuple[EncoderRow, Int[np.ndarray, " W"]]:
        """Return the row of some words, and the position of each word's first token.

        The position is -1 if the row ends before the word, or the vocabulary's cleaning removes it.
        """
        ids, offsets = self._vocabulary.encode_with_offsets(" ".join(words))
        size = min(len(ids), self._length - 2)
        lengths = np.array([len(word) + 1 for word in words], np.int64)
        ends = np.cumsum(lengths) - 1
        starts = ends + 1 - lengths
        begins = np.array([begin for begin, _ in offsets[:size]], np.int64)
        first = np.searchsorted(begins, starts)
        in_row = np.append(begins, np.iinfo(np.int64).max)[first] < ends
        row = self._write(ids, [[(0, size)]])[0]
        return row, np.where(in_row, self._begin + first, -1).astype(np.int32)

    def windows(
        self,
        question: str,
        context: str,
        *,
        stride: int = STRIDE,
        longest_question: int = LONGEST_QUESTION,
    ) -> list[Window]:
        """Return a window for each part of a context, which may exceed a row (BERT, section 4.2).

        Args:
            stride: tokens of the context from the start of one part to the start of the next.
            longest_question: the length to which the question is truncated, in tokens.
        """
        question_ids = self._vocabulary.encode(question)[:longest_question]
        ids, offsets = self._vocabulary.encode_with_offsets(context)
        room = self._length - 2 - self._separators - len(question_ids)
        parts = _parts(len(ids), room=room, stride=stride)
        base = len(question_ids)
        rows = self._write(
            [*question_ids, *ids], [[(0, base), (base + a, base + b)] for a, b in parts]
        )
        ranges = np.array(offsets, np.int32).reshape(-1, 2)
        first = self._begin + base + self._separators
        return [
            Window(row, first, ranges[a:b], len(row.tokens) - 1 if self._class_last else 0)
            for row, (a, b) in zip(rows, parts, strict=True)
        ]

    def check_windows(self, *, stride: int, longest_question: int) -> None:
        """Check that a window has room for some of the context.

        Raises:
            ValueError: it does not, or a setting is below 1.
        """
        special = 2 + self._separators
        _check_windows(self._length, stride, longest_question, special=special)

    def _write(
        self, tokens: Sequence[int], rows: Sequence[Sequence[TextPiece]]
    ) -> list[EncoderRow]:
        laid_out: TextRows = lay_out(
            np.array(tokens, np.int32),
            [Planned(list(pieces)) for pieces in rows],
            length=self._length,
            separators=self._separators,
            special=self._special,
        )
        types = laid_out.token_types if self._separators == 1 else np.zeros_like(laid_out.tokens)
        cut = [
            EncoderRow(laid_out.tokens[number, :size], types[number, :size])
            for number, size in enumerate(laid_out.sizes)
        ]
        return [_with_class_last(row) for row in cut] if self._class_last else cut


def _with_class_last(row: EncoderRow) -> EncoderRow:
    """Move [CLS] to the end, where it is a segment of its own (Yang et al. 2019, section 2.5)."""
    types = np.append(row.token_types[1:], np.int32(CLASS_SEGMENT))
    return EncoderRow(np.roll(row.tokens, -1), types)


def _parts(size: int, *, room: int, stride: int) -> list[tuple[int, int]]:
    """Return the ranges of a context's tokens in its windows.

    Args:
        size: tokens of the context.
        room: tokens of the context that a window can have.
        stride: from the start of one part to the start of the next.
    """
    step = min(stride, room)
    starts = [0, *range(step, max(size - room + step, 0), step)]
    return [(start, min(start + room, size)) for start in starts]


def _check_windows(length: int, stride: int, longest_question: int, *, special: int) -> None:
    """Check the settings of windows; `special` is the number of special tokens in a row."""
    if stride < 1 or longest_question < 1:
        raise ValueError(
            f"question_answering: stride={stride} and longest_question={longest_question} "
            "must be 1 token or more"
        )
    least = longest_question + special + 8
    if length < least:
        raise ValueError(
            f"lengths.inputs={length}: with longest_question={longest_question} rows "
            f"need {least} tokens or more to have room for the context"
        )


@dataclasses.dataclass(frozen=True)
class WordRow(EncoderRow):
    """A row of words.

    Attributes:
        characters: the characters of each word.
    """

    characters: Int[np.ndarray, "L 50"]


class WordRowWriter:
    """Writes texts as rows <S> words </S> of at most `length` words, including the marks.

    Raises:
        ValueError: the vocabulary is not one of words, or rows have no room for a word.
    """

    def __init__(self, vocabulary: Vocabulary, *, length: int):
        self._vocabulary, self._length = check_words(vocabulary), length
        if length < 3:
            raise ValueError(f"lengths.inputs={length}: rows of labelled text need 3 words or more")

    def of_text(self, text: str, second: str | None = None) -> WordRow:
        """Return the row of a text, or of two with </S> between them; a row too long is cut."""
        words = self._vocabulary.words(text)
        if second is not None:
            words += [END, *self._vocabulary.words(second)]
        return self._write(words)

    def of_words(self, words: Sequence[str]) -> tuple[WordRow, Int[np.ndarray, " W"]]:
        """Return the row of some words, and the position of each; -1 for words cut off."""
        positions = np.arange(1, len(words) + 1, dtype=np.int32)
        return self._write(words), np.where(positions < self._length - 1, positions, -1)

    def windows(
        self,
        question: str,
        context: str,
        *,
        stride: int = STRIDE,
        longest_question: int = LONGEST_QUESTION,
    ) -> list[Window]:
        """Return a window `<S> question </S> part </S>` for each part of a context.

        Args:
            stride, longest_question: in words; see `RowWriter.windows`.
        """
        asked = self._vocabulary.words(question)[:longest_question]
        _, offsets = self._vocabulary.encode_with_offsets(context)
        words = [context[start:end] for start, end in offsets]
        parts = _parts(len(words), room=self._length - 3 - len(asked), stride=stride)
        ranges = np.array(offsets, np.int32).reshape(-1, 2)
        rows = [self._write([*asked, END, *words[a:b]]) for a, b in parts]
        return [
            Window(row, len(asked) + 2, ranges[a:b], nothing=0)
            for row, (a, b) in zip(rows, parts, strict=True)
        ]

    def check_windows(self, *, stride: int, longest_question: int) -> None:
        """Check that a window has room for some of the context.

        Raises:
            ValueError: it does not, or a setting is below 1.
        """
        _check_windows(self._length, stride, longest_question, special=3)

    def _write(self, words: Sequence[str]) -> WordRow:
        words = [START, *words[: self._length - 2], END]
        ids = np.array([self._vocabulary.id_of(word) for word in words], np.int32)
        return WordRow(ids, np.zeros_like(ids), spell_all(words))


TokenRows = list[list[int]]  # the rows of one example
WriteRow = Callable[..., list[int]]  # (one text or two) -> tokens
# (a function that writes a row, the fields of a raw row) -> the rows of its example.
Arrange = Callable[..., TokenRows]


def write_row(*texts: str, vocabulary: Vocabulary, length: int) -> list[int]:
    """Return the row of one text or a pair; a pair too long loses tokens of its longer text.

    Raises:
        ValueError: rows of this length have no room for text between the three tokens.
    """
    if length < 8:
        raise ValueError(f"lengths.inputs={length}: rows of labelled text need 8 tokens or more")
    start, delimiter, extract = range(vocabulary.vocab_size, vocabulary.vocab_size + 3)
    first, *others = (vocabulary.encode(text) for text in texts)
    if not others:
        return [start, *first[: length - 2], extract]
    [second], room = others, length - 3
    size = min(len(first), max(room - len(second), (room + 1) // 2))
    return [start, *first[:size], delimiter, *second[: room - size], extract]


def _one_row(write: WriteRow, *texts: str) -> TokenRows:
    return [write(*texts)]


def _both_orders(write: WriteRow, first: str, second: str) -> TokenRows:
    return [write(first, second), write(second, first)]


def _answers(write: WriteRow, answers: Sequence[str], *context: str) -> TokenRows:
    return [write(" ".join(context), answer) for answer in answers]


# By objective; arguments are the fields of a raw row except its label, in the objective's order.
ARRANGE: dict[str, Arrange] = {
    "gpt_classification": _one_row,
    "gpt_similarity": _both_orders,
    "gpt_regression": _both_orders,
    "gpt_multiple_choice": _answers,
}
