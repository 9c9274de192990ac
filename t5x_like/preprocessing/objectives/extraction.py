"""Labelled text for a decoder, whose last token says the label (Radford et al. 2018, section 3.3).

    gpt_classification    text_a, text_b or not, label (the number of a class)
    gpt_similarity        text_a, text_b, label
    gpt_multiple_choice   text_a, text_b or not, choices (strings), answer (which of them)

A row of tokens begins with a start token and ends with an extract token; a delimiter, the $ of the
paper, stands between two texts. The three are ids from the vocabulary's size on, rows that
fine-tuning adds to the model's table (`model.added_tokens`).
"""

from collections.abc import Callable, Sequence

import numpy as np
import seqio
import tensorflow as tf

from t5x_like.preprocessing.objectives.labelled import check_fields, to_text, write_examples
from t5x_like.preprocessing.objectives.lengths import Lengths, OutputFeatures
from t5x_like.preprocessing.objectives.objective import Objective

Rows = list[list[int]]  # of one example
# From what writes a row of one text or two, and the fields of a raw row, to the rows.
Arrange = Callable[..., Rows]

_FEATURES = ("inputs", "row_numbers", "label")


def gpt_classification() -> Objective:
    """A class of a text, or of a premise with its hypothesis: one row.

    inputs: <start> he did not come $ he came <extract>
    """

    def arrange(row: Callable[..., list[int]], *texts: bytes) -> Rows:
        return [row(*map(to_text, texts))]

    return _objective("gpt_classification", ("label", "text_a", "text_b"), arrange, rows=1)


def gpt_similarity() -> Objective:
    """A class of two texts of which neither is the first: a row for each order.

    inputs: <start> how old is he $ what is his age <extract>
            <start> what is his age $ how old is he <extract>
    """

    def arrange(row: Callable[..., list[int]], first: bytes, second: bytes) -> Rows:
        texts = to_text(first), to_text(second)
        return [row(*texts), row(*texts[::-1])]

    fields = ("label", "text_a", "text_b")
    return _objective("gpt_similarity", fields, arrange, rows=2, optional=())


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

    def arrange(row: Callable[..., list[int]], answers: np.ndarray, *context: bytes) -> Rows:
        text = " ".join(map(to_text, context))
        return [row(text, to_text(answer)) for answer in answers]

    fields = ("answer", "choices", "text_a", "text_b")
    return _objective("gpt_multiple_choice", fields, arrange, rows=choices)


def _row(texts: Sequence[str], *, vocabulary: seqio.Vocabulary, length: int) -> list[int]:
    """One text, or two of which the longer one loses its end first, with the three tokens."""
    start, delimiter, extract = range(vocabulary.vocab_size, vocabulary.vocab_size + 3)
    first, *others = (vocabulary.encode(text) for text in texts)
    if not others:
        return [start, *first[: length - 2], extract]
    [second], room = others, length - 3
    size = min(len(first), max(room - len(second), (room + 1) // 2))
    return [start, *first[:size], delimiter, *second[: room - size], extract]


def _objective(
    name: str,
    fields: Sequence[str],
    arrange: Arrange,
    *,
    rows: int,
    optional: tuple[str, ...] = ("text_b",),
) -> Objective:
    """The objective that makes rows of raw rows.

    Args:
        fields: of a raw row: its label, then those that `arrange` takes, in its order.
        rows: of an example, at the most.
        optional: fields that need not be there.
    """

    def to_examples(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        there = check_fields(name, fields, there=dataset.element_spec, optional=optional)
        vocabulary = output_features["inputs"].vocabulary
        length = ((sequence_length or {}).get("inputs") or 0) // rows
        if length < 8:
            raise ValueError(f"lengths.inputs={length}: rows of labelled text need 8 or more")

        def row(*texts: str) -> list[int]:
            return _row(texts, vocabulary=vocabulary, length=length)

        def write(label: np.ndarray, *values: np.ndarray) -> list[dict[str, np.ndarray]]:
            found = arrange(row, *values)
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
