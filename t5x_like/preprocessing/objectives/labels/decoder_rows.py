"""Labelled text for a decoder, whose last token says the label (Radford et al. 2018, section 3.3).

    gpt_classification    text_a, text_b or not, label (the number of a class)
    gpt_similarity        text_a, text_b, label
    gpt_multiple_choice   text_a, text_b or not, choices (strings), answer (which of them)

A row of tokens begins with a start token and ends with an extract token; a delimiter, the $ of the
paper, stands between two texts. The three are ids from the vocabulary's size on, rows that
fine-tuning adds to the model's table (`model.added_tokens`).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t5x_like.preprocessing.objectives.labels.labelled import check_fields, to_text, write_examples
from t5x_like.preprocessing.objectives.objective import Objective
from t5x_like.preprocessing.objectives.running_text.lengths import Lengths, OutputFeatures
from t5x_like.vocabularies import Vocabulary

Rows = list[list[int]]  # of one example
WriteRow = Callable[..., list[int]]  # of one text or two
# From what writes a row, and the fields of a raw row, to the rows.
Arrange = Callable[..., Rows]

_FEATURES = ("inputs", "row_numbers", "label")


def gpt_classification() -> Objective:
    """A class of a text, or of a premise with its hypothesis: one row.

    inputs: <start> he did not come $ he came <extract>
    """
    return _objective("gpt_classification", ("label", "text_a", "text_b"), rows=1)


def gpt_similarity() -> Objective:
    """A class of two texts of which neither is the first: a row for each order.

    inputs: <start> how old is he $ what is his age <extract>
            <start> what is his age $ how old is he <extract>
    """
    return _objective("gpt_similarity", ("label", "text_a", "text_b"), rows=2, optional=())


def gpt_multiple_choice(*, choices: int = 4) -> Objective:
    """Which of some answers fits a text, or a text and a question after it: a row for each answer.

        inputs: <start> he was thirsty . what did he do ? $ he drank <extract>
                <start> he was thirsty . what did he do ? $ he ran <extract>

    Args:
        choices: the most answers that a raw row has: 4 in RACE, 2 in the Story Cloze Test.

    Raises:
        ValueError: fewer than 2.
    """
    if choices < 2:
        raise ValueError(f"choices={choices} of gpt_multiple_choice must be 2 or more")
    fields = ("answer", "choices", "text_a", "text_b")
    return _objective("gpt_multiple_choice", fields, rows=choices)


def write_row(*texts: str, vocabulary: Vocabulary, length: int) -> list[int]:
    """One text, or two of which the longer one loses its end first, with the three tokens.

    Raises:
        ValueError: rows that have no room for text between them.
    """
    if length < 8:
        raise ValueError(f"lengths.inputs={length}: rows of labelled text need 8 or more")
    start, delimiter, extract = range(vocabulary.vocab_size, vocabulary.vocab_size + 3)
    first, *others = (vocabulary.encode(text) for text in texts)
    if not others:
        return [start, *first[: length - 2], extract]
    [second], room = others, length - 3
    size = min(len(first), max(room - len(second), (room + 1) // 2))
    return [start, *first[:size], delimiter, *second[: room - size], extract]


def _one_row(write: WriteRow, *texts: str) -> Rows:
    return [write(*texts)]


def _both_orders(write: WriteRow, first: str, second: str) -> Rows:
    return [write(first, second), write(second, first)]


def _answers(write: WriteRow, answers: Sequence[str], *context: str) -> Rows:
    return [write(" ".join(context), answer) for answer in answers]


# By objective; of a raw row they take what is not its label, in the order above.
ARRANGE: dict[str, Arrange] = {
    "gpt_classification": _one_row,
    "gpt_similarity": _both_orders,
    "gpt_multiple_choice": _answers,
}


def _objective(
    name: str, fields: Sequence[str], *, rows: int, optional: tuple[str, ...] = ("text_b",)
) -> Objective:
    """The objective that makes rows of raw rows.

    Args:
        fields: of a raw row: its label, then those that its `ARRANGE` takes, in order.
        rows: of an example, at the most.
        optional: fields that need not be there.
    """

    def to_examples(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        there = check_fields(name, fields, there=dataset.element_spec, optional=optional)
        vocabulary = output_features["inputs"].vocabulary.plain
        length = ((sequence_length or {}).get("inputs") or 0) // rows
        row = functools.partial(write_row, vocabulary=vocabulary, length=length)
        row("")  # says what is wrong with the length before anything is read

        def write(label: np.ndarray, *values: Any) -> list[dict[str, np.ndarray]]:
            texts = (
                to_text(value) if isinstance(value, bytes) else [to_text(one) for one in value]
                for value in values
            )
            found = ARRANGE[name](row, *texts)
            numbers = np.repeat(np.arange(len(found)) + 1, [len(tokens) for tokens in found])
            inputs = np.concatenate(found)
            return [{"inputs": inputs, "row_numbers": numbers, "label": label[None]}]

        told = f"{name} {rows} {length} {vocabulary}"
        return write_examples(dataset, there, write, features=_FEATURES, told=told)

    return Objective(
        name=name,
        preprocessors=(to_examples,),
        features=_FEATURES,
        converters=("decoder_rows",),
        converter_settings={"rows": rows},
    )
