"""Labelled text: classes, numbers, tags, answers, choices (Devlin et al. 2019, section 4).

For encoders, and for networks that read words by their characters.
"""

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from t5x_like.batches.labelled_rows import (
    LONGEST_QUESTION,
    STRIDE,
    RowWriter,
    WordRow,
    WordRowWriter,
)
from t5x_like.objectives.objective import Example, ExampleSpec, OfRow, Rows, of_encoder, text_of

# (a raw row) -> its examples.
WriteExamples = Callable[[Mapping[str, Any]], list[Example]]

# The fields of raw rows.
OF_CLASSES = ("label", "text_a", "text_b")
OF_TAGS = ("words", "tags")
OF_ANSWERS = ("question", "context", "answer_text", "answer_start")
_TEXTS = ("text_a", "text_b")


def classification() -> Rows:
    """Predict a class of a text or of a pair; the longer text of a pair is truncated to fit.

    inputs: [CLS] he did not come [SEP] he came [SEP]     token_types: 1 on the second, as in BERT
    label:  the class
    """
    of = of_encoder("token_types", "label")
    return objective_of_rows("classification", OF_CLASSES, write_classes, of=of)


def pair_classification() -> Rows:
    """Predict a class of a pair, as in `classification`; all rows must have a second text."""
    of = of_encoder("token_types", "label")
    return objective_of_rows("pair_classification", OF_CLASSES, write_classes, of=of, optional=())


def regression() -> Rows:
    """Predict a number for a text or a pair, with inputs as in `classification`."""

    def write_for(writer: RowWriter) -> WriteExamples:
        return lambda row: [_of_texts(writer, row) | {"value": np.array([row["value"]])}]

    of = of_encoder("token_types", "value")
    return objective_of_rows("regression", ("value", *_TEXTS), write_for, of=of)


def tagging() -> Rows:
    """Predict a tag for each word at its first token; other tokens have no loss (section 5.3).

    inputs:       [CLS] jim hen ##son was [SEP]
    targets:      0     1   2   0     0   0
    loss_weights: 0     1   1   0     1   0
    """
    of = of_encoder("token_types", "targets", "loss_weights")
    return objective_of_rows("tagging", OF_TAGS, write_tags, of=of)


def question_answering(*, stride: int = STRIDE, longest_question: int = LONGEST_QUESTION) -> Rows:
    """Predict where in a context the answer begins and ends (sections 4.2 and 4.3).

        inputs: [CLS] who came ? [SEP] it was jim henson . [SEP]
        answer: 7 and 8, the positions of "jim" and "henson"; [CLS]'s if there is no answer

    A context that is too long becomes several overlapping examples of one question.

    Args:
        stride: tokens from the start of one part of the context to the start of the next, 128 in
            BERT.
        longest_question: the length to which a question is truncated, 64 tokens in BERT.
    """
    return objective_of_rows(
        "question_answering",
        OF_ANSWERS,
        functools.partial(write_answers, stride=stride, longest_question=longest_question),
        of=of_encoder("token_types", "answer"),
    )


def multiple_choice(*, choices: int = 4) -> Rows:
    """Predict which of some choices fits a text, with a row for each choice (section 4.4).

        inputs: [CLS] she opened the door . [SEP] she went in [SEP]
                [CLS] she opened the door . [SEP] she fried it [SEP]
        label:  0

    With `text_b` the second segment is `text_b` and the choice: a question and an answer (RACE), or
    the beginning and the end of a sentence (SWAG).

    Args:
        choices: the most choices of a raw row: 4 in SWAG and RACE.

    Raises:
        ValueError: `choices` is below 2.
    """
    if choices < 2:
        raise ValueError(f"choices={choices} of multiple_choice must be 2 or more")

    def write_for(writer: RowWriter) -> WriteExamples:
        def write(row: Mapping[str, Any]) -> list[Example]:
            rows = writer.of_choices([text_of(choice) for choice in row["choices"]], *texts_of(row))
            sizes = [len(choice_row.tokens) for choice_row in rows]
            return [
                {
                    "inputs": np.concatenate([choice_row.tokens for choice_row in rows]),
                    "row_numbers": np.repeat(np.arange(len(rows)) + 1, sizes),
                    "token_types": np.concatenate([choice_row.token_types for choice_row in rows]),
                    "label": np.array([row["answer"]]),
                }
            ]

        return write

    of = {
        "features": ("inputs", "row_numbers", "token_types", "label"),
        "converters": ("encoder_rows",),
        "converter_settings": {"rows": choices},
    }
    fields = ("answer", "choices", *_TEXTS)
    return objective_of_rows("multiple_choice", fields, write_for, of=of)


def texts_of(row: Mapping[str, Any]) -> list[str]:
    """Return the text, or the two texts, of a raw row."""
    return [text_of(row[name]) for name in _TEXTS if name in row]


def _of_texts(writer: RowWriter, row: Mapping[str, Any]) -> Example:
    return writer.of_text(*texts_of(row)).features


def write_classes(writer: RowWriter) -> WriteExamples:
    """Return the function that writes the example of a row with the fields `OF_CLASSES`."""
    return lambda row: [_of_texts(writer, row) | {"label": np.array([row["label"]])}]


def write_tags(writer: RowWriter) -> WriteExamples:
    """Return the function that writes the example of a row with the fields `OF_TAGS`."""

    def write(raw: Mapping[str, Any]) -> list[Example]:
        row, first = writer.of_words([text_of(word) for word in raw["words"]])
        targets, weights = np.zeros([2, len(row.tokens)], np.int32)
        here = first >= 0
        targets[first[here]], weights[first[here]] = np.asarray(raw["tags"])[here], 1
        return [row.features | {"targets": targets, "loss_weights": weights}]

    return write


def write_answers(
    writer: Any,
    *,
    stride: int,
    longest_question: int,
    features: Callable[[Any], Example] = operator.attrgetter("features"),
) -> WriteExamples:
    """Return the function that writes the examples of `OF_ANSWERS`, one for each window.

    Args:
        writer: a writer of rows with windows.
        stride, longest_question: see `question_answering`.
        features: (a row) -> the features of its example.

    Raises:
        ValueError: a window has no room for the context.
    """
    settings = {"stride": stride, "longest_question": longest_question}
    writer.check_windows(**settings)

    def write(row: Mapping[str, Any]) -> list[Example]:
        start, answer_text = int(row["answer_start"]), text_of(row["answer_text"])
        windows = writer.windows(text_of(row["question"]), text_of(row["context"]), **settings)
        characters = (start, start + len(answer_text)) if start >= 0 else (0, 0)
        answers = [window.places(*characters) for window in windows]
        return [
            features(window.row) | {"answer": np.array(answer)}
            for window, answer in zip(windows, answers, strict=True)
        ]

    return write


def objective_of_rows(
    name: str,
    fields: tuple[str, ...],
    write_for: Callable[[Any], WriteExamples],
    *,
    of: Mapping[str, Any],
    make_writer: Callable[..., Any] = RowWriter,
    optional: tuple[str, ...] = ("text_b",),
    content: Callable[[], str] = str,
) -> Rows:
    """Make an objective that turns raw rows into examples.

    Args:
        fields: the fields of a raw row.
        write_for: (writer of rows) -> the function that writes examples.
        of: what its examples contain, see `of_encoder`.
        make_writer: (vocabulary, length=) -> the writer of rows.
        optional: the fields that rows need not have.
        content: see `Objective`.
    """
    rows = of["converter_settings"].get("rows", 1)

    def plan(spec: ExampleSpec) -> OfRow:
        vocabulary = spec.features["inputs"].vocabulary
        length = (spec.lengths.get("inputs") or 0) // rows
        write = write_for(make_writer(vocabulary, length=length))
        return lambda row, generator: write(row)

    return Rows(
        name=name,
        plan=plan,
        fields=fields,
        optional=optional,
        has_rows="data/labelled_files.py",
        content=content,
        **of,
    )


def word_classification() -> Rows:
    """Predict a class of a text, or of a pair with </S> between the texts.

    inputs: <S> he did not come </S>     characters: of each word     label: the class
    """

    def write_for(writer: WordRowWriter) -> WriteExamples:
        def write(row: Mapping[str, Any]) -> list[Example]:
            features = _features(writer.of_text(*texts_of(row)))
            return [features | {"label": np.array([row["label"]])}]

        return write

    return objective_of_rows(
        "word_classification",
        OF_CLASSES,
        write_for,
        of=of_encoder("characters", "label"),
        make_writer=WordRowWriter,
    )


def word_tagging() -> Rows:
    """Predict a tag for each word; <S> and </S> have no loss.

    inputs:       <S> jim henson was </S>
    targets:      0   1   2      0   0
    loss_weights: 0   1   1      1   0
    """

    def write_for(writer: WordRowWriter) -> WriteExamples:
        def write(raw: Mapping[str, Any]) -> list[Example]:
            row, first = writer.of_words([text_of(word) for word in raw["words"]])
            targets, weights = np.zeros([2, len(row.tokens)], np.int32)
            here = first >= 0
            targets[first[here]], weights[first[here]] = np.asarray(raw["tags"])[here], 1
            return [_features(row) | {"targets": targets, "loss_weights": weights}]

        return write

    return objective_of_rows(
        "word_tagging",
        OF_TAGS,
        write_for,
        of=of_encoder("characters", "targets", "loss_weights"),
        make_writer=WordRowWriter,
    )


def word_question_answering(
    *, stride: int = STRIDE, longest_question: int = LONGEST_QUESTION
) -> Rows:
    """Predict where in a context the answer begins and ends, as in `question_answering`.

        inputs: <S> who came ? </S> it was jim henson . </S>     characters: of each word
        answer: 7 and 8, the positions of "jim" and "henson"; 0, of <S>, if there is no answer

    Args:
        stride, longest_question: in words; see `question_answering`.
    """
    windows = {"stride": stride, "longest_question": longest_question}
    return objective_of_rows(
        "word_question_answering",
        OF_ANSWERS,
        functools.partial(write_answers, **windows, features=_features),
        of=of_encoder("characters", "answer"),
        make_writer=WordRowWriter,
    )


def _features(row: WordRow) -> Example:
    return {"inputs": row.tokens, "characters": row.characters.reshape(-1)}
