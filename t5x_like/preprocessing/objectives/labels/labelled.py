"""Labelled text for an encoder: classes, numbers, tags, answers (Devlin et al. 2019, section 4).

Each objective reads raw rows of its own fields, and makes rows of an encoder of them, by
`labelled_rows`:

    classification      text_a, text_b or not, label (the number of a class)
    regression          text_a, text_b or not, value
    tagging             words, tags (the number of each one's tag)
    question_answering  question, context, answer_text, answer_start (-1 where there is no answer)

Other fields are left out.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from t5x_like.batches.labelled_rows import LONGEST_QUESTION, STRIDE, RowWriter
from t5x_like.preprocessing.objectives.objective import Objective
from t5x_like.preprocessing.objectives.running_text.lengths import Lengths, OutputFeatures

# From the fields of a raw row to its examples, by feature.
Write = Callable[..., list[dict[str, np.ndarray]]]

_FEATURES = ("inputs", "token_types")
_OPTIONAL = ("text_b",)
_TYPES = {"value": tf.float32}


def classification() -> Objective:
    """A class of a text, or of a pair of which the longer one is cut to fit.

    inputs: [CLS] he did not come [SEP] he came [SEP]     token_types: 1 on the second, as in BERT
    label:  the class
    """

    def make(writer: RowWriter) -> Write:
        def write(label: np.ndarray, *texts: bytes) -> list[dict[str, np.ndarray]]:
            return [_of_texts(writer, texts) | {"label": label[None]}]

        return write

    return _objective("classification", ("label", "text_a", "text_b"), make, whole=("label",))


def regression() -> Objective:
    """A number of a text or of a pair, with inputs as in `classification`."""

    def make(writer: RowWriter) -> Write:
        def write(value: np.ndarray, *texts: bytes) -> list[dict[str, np.ndarray]]:
            return [_of_texts(writer, texts) | {"value": value[None]}]

        return write

    return _objective("regression", ("value", "text_a", "text_b"), make, whole=("value",))


def tagging() -> Objective:
    """A tag for each word, told at its first token; the others count for nothing (section 5.3).

    inputs:       [CLS] jim hen ##son was [SEP]
    targets:      0     1   2   0     0   0
    loss_weights: 0     1   1   0     1   0
    """

    def make(writer: RowWriter) -> Write:
        def write(words: np.ndarray, tags: np.ndarray) -> list[dict[str, np.ndarray]]:
            row, first = writer.of_words([to_text(word) for word in words])
            targets, weights = np.zeros([2, len(row.tokens)], np.int32)
            here = first > 0
            targets[first[here]], weights[first[here]] = tags[here], 1
            inputs = {"inputs": row.tokens, "token_types": row.token_types}
            return [inputs | {"targets": targets, "loss_weights": weights}]

        return write

    aligned = ("targets", "loss_weights")
    return _objective("tagging", ("words", "tags"), make, aligned=aligned)


def question_answering(
    *, stride: int = STRIDE, longest_question: int = LONGEST_QUESTION
) -> Objective:
    """Where in a context its answer begins and ends (sections 4.2 and 4.3).

        inputs: [CLS] who came ? [SEP] it was jim henson . [SEP]
        answer: 7 and 8, the places of "jim" and "henson"; 0 and 0 where there is none

    A context that is too long becomes several examples of one question, which overlap.

    Args:
        stride: tokens from the start of a part of the context to that of the next, 128 in BERT.
        longest_question: tokens that a question is cut to, 64 in BERT.
    """

    def make(writer: RowWriter) -> Write:
        writer.check_windows(stride=stride, longest_question=longest_question)

        def write(
            question: bytes, context: bytes, text: bytes, start: np.ndarray
        ) -> list[dict[str, np.ndarray]]:
            windows = writer.windows(
                to_text(question),
                to_text(context),
                stride=stride,
                longest_question=longest_question,
            )
            characters = int(start), int(start) + len(to_text(text))
            return [
                {
                    "inputs": window.row.tokens,
                    "token_types": window.row.token_types,
                    "answer": np.array(window.places(*characters) if start >= 0 else (0, 0)),
                }
                for window in windows
            ]

        return write

    fields = ("question", "context", "answer_text", "answer_start")
    return _objective(
        "question_answering",
        fields,
        make,
        whole=("answer",),
        settings=(stride, longest_question),
    )


def _of_texts(writer: RowWriter, texts: Sequence[bytes]) -> dict[str, np.ndarray]:
    row = writer.of_text(*map(to_text, texts))
    return {"inputs": row.tokens, "token_types": row.token_types}


def to_text(raw: bytes) -> str:
    """The characters of UTF-8, wrong bytes as replacement characters."""
    return raw.decode("utf-8", errors="replace")


def _objective(
    name: str,
    fields: Sequence[str],
    make: Callable[[RowWriter], Write],
    *,
    aligned: tuple[str, ...] = (),
    whole: tuple[str, ...] = (),
    settings: object = None,
) -> Objective:
    """The objective that makes examples of raw rows.

    Args:
        fields: of a raw row, in the order in which `Write` takes them.
        make: from what writes rows to what writes examples.
        aligned, whole: features besides the inputs and their segments: of each token, and of an
            example as a whole.
        settings: what else the examples follow from, for the fingerprint of a data position.
    """
    features = (*_FEATURES, *aligned, *whole)

    def to_examples(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        there = check_fields(name, fields, there=dataset.element_spec)
        vocabulary = output_features["inputs"].vocabulary.plain
        length = (sequence_length or {}).get("inputs") or 0
        write = make(RowWriter(vocabulary, length=length))
        told = f"{name} {settings} {length} {vocabulary}"
        return write_examples(dataset, there, write, features=features, told=told)

    loss_on = {"loss_on": "weights"} if "loss_weights" in features else {}
    return Objective(
        name=name,
        preprocessors=(to_examples,),
        features=features,
        converters=("encoder",),
        converter_settings={"features": features, **loss_on},
    )


def check_fields(
    name: str, fields: Sequence[str], *, there: object, optional: Sequence[str] = _OPTIONAL
) -> list[str]:
    """The fields that raw rows have, in order.

    Args:
        name: of the objective.
        fields: that it reads.
        there: what `element_spec` says of the rows.
        optional: those of the fields that rows need not have.

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
    told: str,
) -> tf.data.Dataset:
    """Raw rows -> the examples that `write` makes of each one's fields.

    Args:
        features: of an example: `inputs`, what is aligned with them, and what is of the whole.
        told: all that `write` follows from, for the fingerprint of a data position.
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
        # A fingerprint sees operations and constants.
        found = tf.numpy_function(call, [*values, tf.constant(told)], [*types, tf.int32])
        *joined, sizes = [tf.ensure_shape(one, [None]) for one in found]
        number = tf.size(sizes)
        return {
            name: tf.RaggedTensor.from_row_lengths(
                one, sizes if name in _ALIGNED else tf.fill([number], tf.size(one) // number)
            )
            for name, one in zip(features, joined, strict=True)
        }

    return dataset.map(of_row, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


_ALIGNED = ("inputs", "token_types", "targets", "loss_weights", "row_numbers")
