"""Questions about a page: which paragraph answers them, and which words of it, or yes or no.

Zaheer et al. 2020, appendix E.2 (Natural Questions), after Alberti et al. 2019 (arXiv:1901.08634).
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from t5x_like.batches.labelled_rows import EncoderRow, RowWriter, Window
from t5x_like.objectives.labelled import WriteExamples, objective_of_rows
from t5x_like.objectives.objective import Rows, of_encoder, text_of
from t5x_like.vocabularies import Vocabulary

STRIDE, LONGEST_QUESTION = 2048, 32  # tokens, as released
NONE = "none"
TYPES = (NONE, "yes", "no", "long", "short")  # of answers, in the order of the released code


def long_answers(*, stride: int = STRIDE, longest_question: int = LONGEST_QUESTION) -> Rows:
    """Predict the long and the short answer to a question about the paragraphs of a page.

        inputs:      [CLS] who left [SEP] ann came . bo left . [SEP]
        sentences:   1     2   3    4     5   5    5 6  6    6 0
        long_answer: 7 and 9, the positions of the paragraph "bo left ."
        answer:      7 and 7, the positions of "bo", the short answer
        label:       4: 0 for no answer, 1 yes, 2 no, 3 only a long answer, 4 a short answer

    A row is [CLS], the question, [SEP], a part of the page and [SEP]. A page that is too long
    becomes several overlapping rows. [CLS], each token of the question and each paragraph is a
    sentence, and so has a global token. An answer that is not wholly in the part is twice the
    position of [CLS], and a part without its long or short answer has label 0.

    A raw row has `context`, the paragraphs, and of each annotator a text in `long_answers` and in
    `short_answers`: "none", "yes" or "no", or the numbers of the first word and of the word after
    the last, "3-6", counted from 0 over all paragraphs; several short answers are separated by
    blanks. The first annotator is trained on, with all words from the first short answer to the
    last.

    Args:
        stride: tokens from the start of one part of the page to the start of the next.
        longest_question: the length to which a question is truncated, in tokens.
    """

    def write_for(writer: PageWriter) -> WriteExamples:
        def write(raw: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
            page = Page([text_of(text) for text in raw["context"]])
            long_answer, short_answer = (
                text_of(raw[name][0]) for name in ("long_answers", "short_answers")
            )
            return [
                window.row.features | _labels(window, page, long_answer, short_answer)
                for window in writer(text_of(raw["question"]), page)
            ]

        return write

    return objective_of_rows(
        "long_answers",
        ("context", "long_answers", "question", "short_answers"),
        write_for,
        of=of_encoder("sentences", "answer", "long_answer", "label"),
        make_writer=functools.partial(PageWriter, stride=stride, longest_question=longest_question),
        optional=(),
    )


def _labels(window: Window, page: "Page", long_answer: str, short_answer: str) -> Any:
    spans = [window.places(*page.characters(answer)) for answer in (long_answer, short_answer)]
    is_lost = [span == (window.nothing, window.nothing) for span in spans]
    if short_answer in ("yes", "no"):
        label = TYPES.index(short_answer)
    elif short_answer != NONE:
        label = 0 if is_lost[1] else TYPES.index("short")
    else:
        label = 0 if is_lost[0] else TYPES.index("long")
    return {
        "answer": np.array(spans[1]),
        "long_answer": np.array(spans[0]),
        "label": np.array([label]),
    }


class Page:
    """Paragraphs as one text, whose words are separated by spaces.

    Attributes:
        text: the text.
        words, paragraphs: the range of characters of each.
    """

    def __init__(self, paragraphs: Sequence[str]):
        split = [paragraph.split() for paragraph in paragraphs]
        self.text = " ".join(word for words in split for word in words)
        self.words = _ranges([len(word) for words in split for word in words])
        self.paragraphs = _ranges([len(" ".join(words)) for words in split if words])

    def characters(self, answer: str) -> tuple[int, int]:
        """Return the range of characters of an answer like "3-6 8-9"; (0, 0) without numbers."""
        numbers = [
            int(number)
            for span in answer.split()
            for number in span.split("-")
            if number.isdecimal()
        ]
        if not numbers:
            return 0, 0
        return int(self.words[numbers[0], 0]), int(self.words[numbers[-1] - 1, 1])

    def numbers(self, start: int, end: int) -> str:
        """Return the words "3-6" that have some of the characters from `start` to `end`."""
        first = int(np.searchsorted(self.words[:, 1], start, side="right"))
        last = int(np.searchsorted(self.words[:, 0], end, side="left"))
        return f"{first}-{last}"


def _ranges(sizes: Sequence[int]) -> Int[np.ndarray, "N 2"]:
    """Return the ranges of characters of texts that are separated by a space."""
    lengths = np.array(sizes, np.int64).reshape(-1)
    starts = np.cumsum(lengths + 1) - lengths - 1
    return np.stack([starts, starts + lengths], axis=1)


@dataclasses.dataclass(frozen=True)
class PageRow(EncoderRow):
    """A question with a part of a page.

    Attributes:
        sentences: the number of each token's sentence, see `long_answers`.
    """

    sentences: Int[np.ndarray, " L"]

    @property
    def features(self) -> dict[str, np.ndarray]:
        """Return the features of an example, aligned with its tokens."""
        return {"inputs": self.tokens, "sentences": self.sentences}


class PageWriter:
    """Writes a question about a page as rows of at most `length` tokens; see `long_answers`.

    Raises:
        ValueError: the vocabulary lacks [CLS], [SEP] or [MASK], or rows are too short.
    """

    def __init__(self, vocabulary: Vocabulary, *, length: int, stride: int, longest_question: int):
        self._writer = RowWriter(vocabulary, length=length)
        self._settings = {"stride": stride, "longest_question": longest_question}
        self._writer.check_windows(**self._settings)

    def __call__(self, question: str, page: Page) -> list[Window]:
        """Return a window for each part of the page."""
        windows = self._writer.windows(question, page.text, **self._settings)
        return [_numbered(window, page) for window in windows]


def _numbered(window: Window, page: Page) -> Window:
    numbers = np.zeros(len(window.row.tokens), np.int32)
    numbers[: window.first] = np.arange(window.first) + 1
    paragraphs = np.searchsorted(page.paragraphs[:, 0], window.offsets[:, 0], side="right")
    numbers[window.context] = window.first + 1 + np.unique(paragraphs, return_inverse=True)[1]
    row = PageRow(window.row.tokens, window.row.token_types, numbers)
    return dataclasses.replace(window, row=row)
