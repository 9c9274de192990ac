"""Questions with candidate answers and documents, as the rows of ETC's global tokens.

Ainslie et al. 2020 and Zaheer et al. 2020, appendix E.2 (WikiHop).
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from t5x_like.batches.labelled_rows import LONGEST_QUESTION
from t5x_like.objectives.grouping import split
from t5x_like.objectives.labelled import WriteExamples, objective_of_rows
from t5x_like.objectives.objective import Rows, of_encoder, text_of
from t5x_like.vocabularies import Vocabulary

CHOICES = 79  # the most candidates of a question of WikiHop
LONGEST_CHOICE = 32  # tokens


def candidates(
    *,
    choices: int = CHOICES,
    longest_choice: int = LONGEST_CHOICE,
    longest_question: int = LONGEST_QUESTION,
) -> Rows:
    """Predict which candidate answers a question about documents, the lines of `text_a`.

        inputs:     oslo bergen home ann the home of ann is oslo . oslo is wet . it rains .
        sentences:  1    2      3    4   5   5    5  5   5  5    5 6    6  6   6 7  7     7
        paragraphs: 1    2      3    3   4   4    4  4   4  4    4 5    5  5   5 5  5     5
        candidates: 1    2      0    0   0   0    0  0   0  1    0 1    0  0   0 0  0     0
        label:      0

    A row is the candidates, the question (`text_b`) and the documents, without special tokens. Each
    candidate, each token of the question and each sentence of a document is a sentence, and so has
    a global token. Each candidate, the question and each document is a paragraph. `candidates` is
    the candidate that a token mentions, with its whole words, in upper or lower case.

    Documents that are too long lose their last sentences, always from a document that has the most
    (as in the released code), until the last of these fits in part.

    Args:
        choices: the most candidates of a row; all are read.
        longest_choice, longest_question: the lengths to which the text of a candidate and a
            question are truncated, in tokens.

    Raises:
        ValueError: a setting is too small.
    """
    if choices < 2 or longest_choice < 1 or longest_question < 1:
        raise ValueError(
            f"candidates: choices={choices} must be 2 or more, and longest_choice={longest_choice} "
            f"and longest_question={longest_question} 1 or more"
        )

    def write_for(writer: CandidateWriter) -> WriteExamples:
        def write(raw: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
            texts = [text_of(raw[name]) for name in ("text_a", "text_b")]
            row = writer([text_of(choice) for choice in raw["choices"]], *texts)
            return [row.features | {"label": np.array([raw["answer"]])}]

        return write

    def make_writer(vocabulary: Vocabulary, *, length: int) -> CandidateWriter:
        least = choices * longest_choice + longest_question
        if length < least:
            raise ValueError(
                f"data.lengths.inputs={length}: choices={choices}, longest_choice={longest_choice} "
                f"and longest_question={longest_question} of candidates need {least} tokens or more"
            )
        return CandidateWriter(
            vocabulary,
            length=length,
            longest_choice=longest_choice,
            longest_question=longest_question,
        )

    return objective_of_rows(
        "candidates",
        ("answer", "choices", "text_a", "text_b"),
        write_for,
        of=of_encoder("sentences", "paragraphs", "candidates", "label"),
        make_writer=make_writer,
        optional=(),
    )


@dataclasses.dataclass(frozen=True)
class CandidateRow:
    """A row of candidates, a question and documents; see `candidates`.

    Attributes:
        tokens: the ids.
        sentences, paragraphs: the number of each token's sentence and paragraph, from 1.
        candidates: the number of the candidate that each token mentions, from 1; 0 for none.
    """

    tokens: Int[np.ndarray, " L"]
    sentences: Int[np.ndarray, " L"]
    paragraphs: Int[np.ndarray, " L"]
    candidates: Int[np.ndarray, " L"]

    @property
    def features(self) -> dict[str, np.ndarray]:
        """Return the features of an example, aligned with its tokens."""
        return {
            "inputs": self.tokens,
            "sentences": self.sentences,
            "paragraphs": self.paragraphs,
            "candidates": self.candidates,
        }


@dataclasses.dataclass(frozen=True)
class _Sentence:
    """The tokens of a sentence, the candidate that each mentions, and its paragraph."""

    tokens: list[int]
    candidates: list[int]
    paragraph: int

    def cut(self, size: int) -> "_Sentence":
        return dataclasses.replace(
            self, tokens=self.tokens[:size], candidates=self.candidates[:size]
        )


@dataclasses.dataclass(frozen=True)
class CandidateWriter:
    """Writes a question, its candidates and its documents as a row.

    Attributes:
        vocabulary: tokenizes the texts.
        length: the most tokens of a row.
        longest_choice, longest_question: see `candidates`.
    """

    vocabulary: Vocabulary
    length: int
    longest_choice: int = LONGEST_CHOICE
    longest_question: int = LONGEST_QUESTION

    def __call__(self, choices: Sequence[str], text: str, question: str) -> CandidateRow:
        """Return a row.

        Args:
            choices: the candidates.
            text: a document in each line.
            question: the question.
        """
        choices = [" ".join(choice.split()) for choice in choices]
        sentences: list[_Sentence] = []
        for number, choice in enumerate(choices, start=1):
            # A vocabulary that drops some characters may leave nothing of a candidate.
            tokens = self.vocabulary.encode(choice) or [self.vocabulary.unk_id or 0]
            sentence = _Sentence(tokens, [number] * len(tokens), number)
            sentences.append(sentence.cut(self.longest_choice))
        asked = self.vocabulary.encode(question)[: self.longest_question]
        sentences += [_Sentence([token], [0], len(choices) + 1) for token in asked]
        room = self.length - sum(len(sentence.tokens) for sentence in sentences)
        documents = self._documents(text, choices, first=len(choices) + 2)
        for of_document in fit(documents, room=room):
            sentences += of_document
        return _row(sentences)

    def _documents(
        self, text: str, choices: Sequence[str], *, first: int
    ) -> Iterator[list[_Sentence]]:
        find = _mentions_of(choices)
        for paragraph, line in enumerate(filter(str.strip, text.split("\n")), start=first):
            sentences = []
            for sentence in split(" ".join(line.split())):
                tokens, offsets = self.vocabulary.encode_with_offsets(sentence)
                numbers = [0] * len(tokens)
                for start, end, number in find(sentence):
                    for position, (begins, ends) in enumerate(offsets):
                        if begins < end and start < ends:
                            numbers[position] = number
                sentences.append(_Sentence(list(tokens), numbers, paragraph))
            yield sentences


def fit(documents: Iterator[list[_Sentence]], *, room: int) -> list[list[_Sentence]]:
    """Drop last sentences of the documents with the most, until all have at most `room` tokens."""
    remaining = list(documents)
    over = sum(len(sentence.tokens) for document in remaining for sentence in document) - room
    while over > 0:
        longest = max(remaining, key=len)
        last = longest.pop()
        over -= len(last.tokens)
        if over < 0:
            longest.append(last.cut(-over))
    return remaining


def _mentions_of(choices: Sequence[str]) -> Any:
    """Return a function: a sentence -> (first character, end, number) of each mention.

    Of overlapping mentions the first counts, and of several at a position the longest.
    """
    named = [number for number, choice in enumerate(choices) if choice]
    order = sorted(named, key=lambda number: -len(choices[number]))
    texts = "|".join(f"({re.escape(choices[n])})" for n in order)
    pattern = re.compile(rf"(?<!\w)(?:{texts})(?!\w)", re.IGNORECASE)

    def find(sentence: str) -> Iterator[tuple[int, int, int]]:
        for match in pattern.finditer(sentence):
            if match.lastindex:  # not the empty text of a blank candidate
                yield match.start(), match.end(), order[match.lastindex - 1] + 1

    return find


def _row(sentences: Sequence[_Sentence]) -> CandidateRow:
    sizes = [len(sentence.tokens) for sentence in sentences]
    paragraphs = [sentence.paragraph for sentence in sentences]

    def joined(values: Sequence[Sequence[int]]) -> Int[np.ndarray, " L"]:
        return np.array([value for of_sentence in values for value in of_sentence], np.int32)

    return CandidateRow(
        tokens=joined([sentence.tokens for sentence in sentences]),
        sentences=np.repeat(np.arange(1, len(sizes) + 1), sizes).astype(np.int32),
        paragraphs=np.repeat(paragraphs, sizes).astype(np.int32),
        candidates=joined([sentence.candidates for sentence in sentences]),
    )
