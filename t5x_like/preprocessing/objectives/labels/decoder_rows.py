"""Labelled text for a decoder that predicts at its last token (Radford et al. 2018, section 3.3).

    gpt_classification    text_a, text_b (optional), label (the index of a class)
    gpt_similarity        text_a, text_b, label
    gpt_regression        text_a, text_b, value
    gpt_multiple_choice   text_a, text_b (optional), choices (strings), answer (the index of one)

`batches.extraction_rows` writes the rows.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t5x_like.batches.extraction_rows import ARRANGE, write_row
from t5x_like.batches.objective_examples import examples_of
from t5x_like.preprocessing.objectives.labels.labelled import check_fields, to_text, write_examples
from t5x_like.preprocessing.objectives.objective import Objective, make
from t5x_like.preprocessing.objectives.running_text.lengths import Lengths, OutputFeatures


def gpt_classification() -> Objective:
    """Predict a class of a text, or of a premise with its hypothesis, in one row.

    inputs: <start> he did not come $ he came <extract>
    """
    return _objective("gpt_classification", ("label", "text_a", "text_b"))


def gpt_similarity() -> Objective:
    """Predict a class of two unordered texts, with a row for each order.

    inputs: <start> how old is he $ what is his age <extract>
            <start> what is his age $ how old is he <extract>
    """
    return _objective("gpt_similarity", ("label", "text_a", "text_b"), optional=())


def gpt_regression() -> Objective:
    """Predict the similarity of two texts as a number, with rows as in `gpt_similarity`."""
    return _objective("gpt_regression", ("value", "text_a", "text_b"), optional=())


def gpt_multiple_choice(*, choices: int = 4) -> Objective:
    """Predict which of some answers fits a text, or a text and a question: a row for each answer.

        inputs: <start> he was thirsty . what did he do ? $ he drank <extract>
                <start> he was thirsty . what did he do ? $ he ran <extract>

    Args:
        choices: the most answers of a raw row: 4 in RACE, 2 in the Story Cloze Test.

    Raises:
        ValueError: `choices` is below 2.
    """
    if choices < 2:
        raise ValueError(f"choices={choices} of gpt_multiple_choice must be 2 or more")
    fields = ("answer", "choices", "text_a", "text_b")
    return _objective("gpt_multiple_choice", fields, settings={"choices": choices})


def _objective(
    name: str,
    fields: Sequence[str],
    *,
    settings: Mapping[str, Any] | None = None,
    optional: tuple[str, ...] = ("text_b",),
) -> Objective:
    """Make an objective that turns each raw row into an example.

    Args:
        fields: the fields of a raw row: its label, then the arguments of its `ARRANGE`, in order.
        settings: the settings of the objective.
        optional: the fields that a raw row need not have.
    """
    found = examples_of(name, settings or {})
    rows, target = (found.converter_settings[setting] for setting in ("rows", "target"))

    def to_examples(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        there = check_fields(name, fields, there=dataset.element_spec, optional=optional)
        vocabulary = output_features["inputs"].vocabulary.plain
        length = ((sequence_length or {}).get("inputs") or 0) // rows
        row = functools.partial(write_row, vocabulary=vocabulary, length=length)
        row("")  # raises if the length is wrong, before anything is read

        def write(label: np.ndarray, *values: Any) -> list[dict[str, np.ndarray]]:
            texts = (
                to_text(value) if isinstance(value, bytes) else [to_text(one) for one in value]
                for value in values
            )
            found = ARRANGE[name](row, *texts)
            numbers = np.repeat(np.arange(len(found)) + 1, [len(tokens) for tokens in found])
            inputs = np.concatenate(found)
            return [{"inputs": inputs, "row_numbers": numbers, target: label[None]}]

        identity = f"{name} {rows} {length} {vocabulary}"
        return write_examples(dataset, there, write, features=found.features, identity=identity)

    return make(name, (to_examples,), settings)
