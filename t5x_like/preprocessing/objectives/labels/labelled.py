"""Labelled text for an encoder: classes, numbers, tags, answers, choices (Devlin et al. 2019, 4).

Each objective reads raw rows with these fields, and makes rows of an encoder with `labelled_rows`:

    classification      text_a, text_b (optional), label (the index of a class)
    pair_classification text_a, text_b, label
    regression          text_a, text_b (optional), value
    tagging             words, tags (the index of each word's tag)
    question_answering  question, context, answer_text, answer_start (-1 if there is no answer)
    multiple_choice     text_a, text_b (optional), choices (strings), answer (the index of one)

Other fields are ignored.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t5x_like.batches.labelled_rows import LONGEST_QUESTION, STRIDE, RowWriter
from t5x_like.batches.objective_examples import examples_of
from t5x_like.preprocessing.objectives.objective import Objective, make
from t5x_like.preprocessing.objectives.running_text.lengths import Lengths, OutputFeatures

# (the fields of a raw row) -> its examples, each {feature: array}.
Write = Callable[..., list[dict[str, np.ndarray]]]

# The fields of raw rows, in the order in which `Write` takes them.
OF_CLASSES = ("label", "text_a", "text_b")
OF_TAGS = ("words", "tags")
OF_ANSWERS = ("question", "context", "answer_text", "answer_start")
_OPTIONAL = ("text_b",)
_TYPES = {"value": tf.float32}


def classification() -> Objective:
    """Predict a class of a text or of a pair; the longer text of a pair is truncated to fit.

    inputs: [CLS] he did not come [SEP] he came [SEP]     token_types: 1 on the second, as in BERT
    label:  the class
    """
    return objective_of_rows("classification", OF_CLASSES, write_classes)


def pair_classification() -> Objective:
    """Predict a class of a pair, as in `classification`; all rows must have a second text."""
    return objective_of_rows("pair_classification", OF_CLASSES, write_classes, optional=())


def regression() -> Objective:
    """Predict a number for a text or a pair, with inputs as in `classification`."""

    def write_for(writer: RowWriter) -> Write:
        def write(value: np.ndarray, *texts: bytes) -> list[dict[str, np.ndarray]]:
            return [_of_texts(writer, texts) | {"value": value[None]}]

        return write

    return objective_of_rows("regression", ("value", "text_a", "text_b"), write_for)


def tagging() -> Objective:
    """Predict a tag for each word at its first token; other tokens have no loss (section 5.3).

    inputs:       [CLS] jim hen ##son was [SEP]
    targets:      0     1   2   0     0   0
    loss_weights: 0     1   1   0     1   0
    """
    return objective_of_rows("tagging", OF_TAGS, write_tags)


def question_answering(
    *, stride: int = STRIDE, longest_question: int = LONGEST_QUESTION
) -> Objective:
    """Predict where in a context the answer begins and ends (sections 4.2 and 4.3).

        inputs: [CLS] who came ? [SEP] it was jim henson . [SEP]
        answer: 7 and 8, the positions of "jim" and "henson"; 0 and 0 if there is no answer

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
        settings=(stride, longest_question),
    )


def multiple_choice(*, choices: int = 4) -> Objective:
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

    def write_for(writer: RowWriter) -> Write:
        def write(
            answer: np.ndarray, found: np.ndarray, *texts: bytes
        ) -> list[dict[str, np.ndarray]]:
            rows = writer.of_choices([to_text(one) for one in found], *map(to_text, texts))
            sizes = [len(row.tokens) for row in rows]
            return [
                {
                    "inputs": np.concatenate([row.tokens for row in rows]),
                    "row_numbers": np.repeat(np.arange(len(rows)) + 1, sizes),
                    "token_types": np.concatenate([row.token_types for row in rows]),
                    "label": answer[None],
                }
            ]

        return write

    fields = ("answer", "choices", "text_a", "text_b")
    return objective_of_rows("multiple_choice", fields, write_for, examples={"choices": choices})


def _of_texts(writer: RowWriter, texts: Sequence[bytes]) -> dict[str, np.ndarray]:
    return writer.of_text(*map(to_text, texts)).features


def write_classes(writer: RowWriter) -> Write:
    """Return the function that writes the example of a row with the fields `OF_CLASSES`."""

    def write(label: np.ndarray, *texts: bytes) -> list[dict[str, np.ndarray]]:
        return [_of_texts(writer, texts) | {"label": label[None]}]

    return write


def write_tags(writer: RowWriter) -> Write:
    """Return the function that writes the example of a row with the fields `OF_TAGS`."""

    def write(words: np.ndarray, tags: np.ndarray) -> list[dict[str, np.ndarray]]:
        row, first = writer.of_words([to_text(word) for word in words])
        targets, weights = np.zeros([2, len(row.tokens)], np.int32)
        here = first > 0
        targets[first[here]], weights[first[here]] = tags[here], 1
        return [row.features | {"targets": targets, "loss_weights": weights}]

    return write


def write_answers(writer: RowWriter, *, stride: int, longest_question: int) -> Write:
    """Return the function that writes the examples of `OF_ANSWERS`, one for each window.

    Raises:
        ValueError: a window has no room for the context.
    """
    given = {"stride": stride, "longest_question": longest_question}
    writer.check_windows(**given)

    def write(
        question: bytes, context: bytes, text: bytes, start: np.ndarray
    ) -> list[dict[str, np.ndarray]]:
        windows = writer.windows(to_text(question), to_text(context), **given)
        characters = int(start), int(start) + len(to_text(text))
        answers = [window.places(*characters) if start >= 0 else (0, 0) for window in windows]
        return [
            window.row.features | {"answer": np.array(answer)}
            for window, answer in zip(windows, answers, strict=True)
        ]

    return write


def to_text(raw: bytes) -> str:
    """Decode UTF-8, with replacement characters for invalid bytes."""
    return raw.decode("utf-8", errors="replace")


def objective_of_rows(
    name: str,
    fields: Sequence[str],
    write_for: Callable[[Any], Write],
    *,
    settings: object = None,
    examples: Mapping[str, Any] | None = None,
    make_writer: Callable[..., Any] = RowWriter,
    optional: Sequence[str] = _OPTIONAL,
) -> Objective:
    """Make an objective that turns raw rows into examples.

    Args:
        fields: the fields of a raw row, in the order in which `Write` takes them.
        write_for: (writer of rows) -> the function that writes examples.
        settings: anything else that the examples depend on, for a data position's fingerprint.
        examples: the settings of the objective that decide what its examples contain.
        make_writer: (vocabulary, length=) -> the writer of rows.
        optional: the fields that rows need not have.
    """
    found = examples_of(name, examples or {})
    rows = found.converter_settings.get("rows", 1)

    def to_examples(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        there = check_fields(name, fields, there=dataset.element_spec, optional=optional)
        vocabulary = output_features["inputs"].vocabulary.plain
        length = ((sequence_length or {}).get("inputs") or 0) // rows
        write = write_for(make_writer(vocabulary, length=length))
        identity = f"{name} {settings} {length} {vocabulary}"
        return write_examples(dataset, there, write, features=found.features, identity=identity)

    return make(name, (to_examples,), examples)


def check_fields(
    name: str, fields: Sequence[str], *, there: object, optional: Sequence[str] = _OPTIONAL
) -> list[str]:
    """Return the fields of the objective that the raw rows have, in order.

    Args:
        name: the name of the objective.
        fields: the fields that it reads.
        there: the `element_spec` of the rows.
        optional: the fields that rows need not have.

    Raises:
        ValueError: rows lack a field.
    """
    found = [field for field in fields if isinstance(there, dict) and field in there]
    missing = [field for field in fields if field not in (*found, *optional)]
    if missing:
        raise ValueError(
            f"data.objective={name!r} reads the fields {', '.join(fields)}, and the task's rows "
            f"lack {', '.join(missing)}: data/labelled_files.py has rows of labelled text"
        )
    return found


def write_examples(
    dataset: tf.data.Dataset,
    fields: Sequence[str],
    write: Write,
    *,
    features: Sequence[str],
    identity: str,
) -> tf.data.Dataset:
    """Turn each raw row into the examples that `write` makes from its fields.

    Args:
        features: the features of an example; some are aligned with `inputs`, others describe the
            whole example.
        identity: everything that `write` depends on, for the fingerprint of a data position.
    """
    types = [_TYPES.get(name, tf.int32) for name in features]

    def call(*values: np.ndarray) -> list[np.ndarray]:
        examples = write(*values[:-1])
        columns = ([np.asarray(one[name]) for one in examples] for name in features)
        sizes = np.array([len(one["inputs"]) for one in examples], np.int32)
        joined = [
            np.concatenate(column).astype(kind.as_numpy_dtype)
            for column, kind in zip(columns, types, strict=True)
        ]
        return [*joined, sizes]

    def of_row(row: dict[str, tf.Tensor]) -> dict[str, tf.RaggedTensor]:
        values = [row[name] for name in fields]
        # The fingerprint is made from operations and constants.
        found = tf.numpy_function(call, [*values, tf.constant(identity)], [*types, tf.int32])
        *joined, sizes = [tf.ensure_shape(one, [None]) for one in found]
        number = tf.size(sizes)
        return {
            name: tf.RaggedTensor.from_row_lengths(
                one, sizes if name in _ALIGNED else tf.fill([number], tf.size(one) // number)
            )
            for name, one in zip(features, joined, strict=True)
        }

    return dataset.map(of_row, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


_OF_TREES = ("soft_positions", "branches", "entities")
_ALIGNED = ("inputs", "token_types", "targets", "loss_weights", "row_numbers", *_OF_TREES)
