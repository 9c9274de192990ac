"""Questions about paragraphs, whose sentences are the rows of ETC's global tokens.

Ainslie et al. 2020 and Zaheer et al. 2020, appendix E.2 (HotpotQA).
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from t5x_like.objectives.labelled import WriteExamples, objective_of_rows
from t5x_like.objectives.objective import Rows, of_encoder, text_of
from t5x_like.vocabularies import Vocabulary, check_special_tokens

SENTENCES = 256  # the most global tokens of a row, in table 12
TYPES = ("span", "yes", "no")  # of answers, in the order of the released code

Fact = tuple[str, int]  # the title of a paragraph, and the number of its sentence from 0
_TITLE = -1


def supporting_facts(*, sentences: int = SENTENCES) -> Rows:
    """Predict the answer to a question about paragraphs, and which sentences support it.

        inputs:     [CLS] who left ? ann ann came . bo bo left . it rained .
        sentences:  1     2   3    4 5   6   6    6 7  8  8    8 9  9      9
        paragraphs: 1     2   2    2 3   3   3    3 4  4  4    4 4  4      4
        titles:     0     0   0    0 5   5   5    5 7  7  7    7 7  7      7
        facts:      0     0   0    0 0   0   0    0 1  1  1    1 0  0      0
        answer:     8 and 8, the positions of "bo" in the title of its paragraph
        label:      0, a span; 1 yes, 2 no, whose `answer` is [CLS]

    A row is [CLS], the question and the `context`. A text of the context is a paragraph, with the
    title in its first line and a sentence in each other line. [CLS], each token of the question,
    each title and each sentence is a sentence, and so has a global token; the title's stands for
    the paragraph, see `titles`. `facts` is 1 on supporting sentences and on their titles. The
    answer is the first text like it in these.

    What does not fit is left out, as in the released code: the end of a question; a sentence, while
    a shorter sentence after it may fit; a paragraph whose title does not fit. A question without a
    supporting sentence, or without the text of its answer there, has no example.

    Args:
        sentences: the most sentences of a row.

    Raises:
        ValueError: `sentences` is below 4.
    """
    if sentences < 4:
        raise ValueError(f"supporting_facts: sentences={sentences} must be 4 or more")

    def write_for(writer: FactWriter) -> WriteExamples:
        def write(raw: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
            titles = map(text_of, raw["fact_titles"])
            facts = {*zip(titles, map(int, raw["fact_numbers"]), strict=True)}
            row = writer(text_of(raw["question"]), [text_of(text) for text in raw["context"]])
            return row.examples(text_of(raw["answer"]), facts)

        return write

    def make_writer(vocabulary: Vocabulary, *, length: int) -> FactWriter:
        return FactWriter(vocabulary, length=length, sentences=sentences)

    return objective_of_rows(
        "supporting_facts",
        ("answer", "context", "fact_numbers", "fact_titles", "question"),
        write_for,
        of=of_encoder("sentences", "paragraphs", "titles", "facts", "answer", "label"),
        make_writer=make_writer,
        optional=(),
    )


@dataclasses.dataclass(frozen=True)
class FactLine:
    """[CLS], a token of a question, a title or a sentence.

    Attributes:
        tokens: its tokens.
        paragraph: the number of its paragraph, from 1.
        title: the number of its title in the row, from 1; 0 for [CLS] and a question.
        fact: the title, and the number of the sentence, -1 for the title itself; None for [CLS] and
            a question.
        text, offsets: the text, and the characters of each token.
    """

    tokens: Sequence[int]
    paragraph: int
    title: int = 0
    fact: Fact | None = None
    text: str = ""
    offsets: Sequence[tuple[int, int]] = ()

    def find(self, answer: str) -> tuple[int, int] | None:
        """Return the first and last token of an answer's first text; None if there is none."""
        start = self.text.find(answer)
        end = start + len(answer)
        inside = [n for n, (first, last) in enumerate(self.offsets) if first < end and start < last]
        return (inside[0], inside[-1]) if start >= 0 and inside else None


@dataclasses.dataclass(frozen=True)
class FactRow:
    """A row of [CLS], a question and paragraphs, see `supporting_facts`."""

    lines: Sequence[FactLine]

    @property
    def tokens(self) -> Int[np.ndarray, " L"]:
        """The tokens of the row."""
        return np.array([token for line in self.lines for token in line.tokens], np.int32)

    @property
    def features(self) -> dict[str, np.ndarray]:
        """The features of an example that do not depend on its answer."""
        return {
            "inputs": self.tokens,
            "sentences": self._aligned(range(1, len(self.lines) + 1)),
            "paragraphs": self._aligned(line.paragraph for line in self.lines),
            "titles": self._aligned(line.title for line in self.lines),
        }

    @property
    def _firsts(self) -> Int[np.ndarray, " S"]:
        """The position of the first token of each line."""
        return np.cumsum([0, *(len(line.tokens) for line in self.lines[:-1])])

    def _aligned(self, values: Iterable[int]) -> Int[np.ndarray, " L"]:
        sizes = [len(line.tokens) for line in self.lines]
        return np.repeat(np.array([*values], np.int32), sizes)

    def examples(self, answer: str, facts: Collection[Fact]) -> list[dict[str, np.ndarray]]:
        """Return the example of an answer and its facts; none if the row has lost either."""
        facts = {*facts, *((title, _TITLE) for title, _ in facts)}
        supporting = [line.fact in facts for line in self.lines]
        label = TYPES.index(answer) if answer in TYPES[1:] else 0
        spans = [(0, 0)] if label else self._spans(" ".join(answer.split()), supporting)
        if not spans or not any(supporting):
            return []
        of_answer = {
            "facts": self._aligned(supporting),
            "answer": np.array(spans[0]),
            "label": np.array([label]),
        }
        return [self.features | of_answer]

    def _spans(self, answer: str, supporting: Sequence[bool]) -> list[tuple[int, int]]:
        """Return the first and last token of an answer in each supporting line that has it."""
        lines = zip(self.lines, self._firsts, supporting, strict=True)
        spans = [(first, line.find(answer)) for line, first, is_fact in lines if is_fact]
        return [(first + span[0], first + span[1]) for first, span in spans if span]

    def text(self, first: int, last: int) -> str:
        """Return the text from one token of a sentence to another."""
        number = int(np.searchsorted(self._firsts, first, side="right")) - 1
        line, begin = self.lines[number], self._firsts[number]
        return line.text[line.offsets[first - begin][0] : line.offsets[last - begin][1]]


@dataclasses.dataclass(frozen=True)
class FactWriter:
    """Writes a question and its paragraphs as a row.

    Attributes:
        vocabulary: tokenizes the texts.
        length: the most tokens of a row.
        sentences: see `supporting_facts`.

    Raises:
        ValueError: the vocabulary lacks [CLS], [SEP] or [MASK], or rows are too short.
    """

    vocabulary: Vocabulary
    length: int
    sentences: int = SENTENCES

    def __post_init__(self) -> None:
        if self.length < 8:
            raise ValueError(f"lengths.inputs={self.length}: rows of questions need 8 or more")
        check_special_tokens(self.vocabulary)

    def __call__(self, question: str, context: Sequence[str]) -> FactRow:
        """Return a row.

        Args:
            context: paragraphs, each a title and sentences in lines.
        """
        asked = self.vocabulary.encode(question)
        lines = [FactLine([self.vocabulary.required_id("cls_id")], paragraph=1)]
        lines += [FactLine([token], paragraph=2) for token in asked]
        lines = lines[: min(self.length, self.sentences)]
        room = self.length - len(lines)
        for paragraph, text in enumerate(context, start=3):
            title = len(lines) + 1
            for line in self._lines(text, paragraph=paragraph, title=title):
                if len(line.tokens) <= room and len(lines) < self.sentences:
                    lines.append(line)
                    room -= len(line.tokens)
                elif len(lines) < title:  # without its title
                    break
        return FactRow(lines)

    def _lines(self, text: str, **of_paragraph: int) -> Iterator[FactLine]:
        texts = [" ".join(line.split()) for line in text.split("\n")]
        for number, line in enumerate(texts, start=_TITLE):
            tokens, offsets = self.vocabulary.encode_with_offsets(line)
            if number == _TITLE and not tokens:
                tokens, offsets = [self.vocabulary.unk_id or 0], [(0, 0)]
            if tokens:
                fact = (texts[0], number)
                yield FactLine(tokens, **of_paragraph, fact=fact, text=line, offsets=offsets)
