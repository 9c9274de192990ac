"""Labelled text for a decoder that predicts at its last token (Radford et al. 2018, section 3.3).

    gpt_classification    text_a, text_b (optional), label (the index of a class)
    gpt_similarity        text_a, text_b, label
    gpt_regression        text_a, text_b, value
    gpt_multiple_choice   text_a, text_b (optional), choices (strings), answer (the index of one)

`batches.extraction_rows` writes the rows.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from t5x_like.batches.labelled_rows import ARRANGE, write_row
from t5x_like.objectives.labelled import OF_CLASSES
from t5x_like.objectives.objective import Example, ExampleSpec, OfRow, Rows, text_of


def gpt_classification() -> Rows:
    """Predict a class of a text, or of a premise with its hypothesis, in one row.

    inputs: <start> he did not come $ he came <extract>
    """
    return _objective("gpt_classification", OF_CLASSES, rows=1)


def gpt_similarity() -> Rows:
    """Predict a class of two unordered texts, with a row for each order.

    inputs: <start> how old is he $ what is his age <extract>
            <start> what is his age $ how old is he <extract>
    """
    return _objective("gpt_similarity", OF_CLASSES, rows=2, optional=())


def gpt_regression() -> Rows:
    """Predict the similarity of two texts as a number, with rows as in `gpt_similarity`."""
    return _objective("gpt_regression", ("value", "text_a", "text_b"), rows=2, optional=())


def gpt_multiple_choice(*, choices: int = 4) -> Rows:
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
    return _objective("gpt_multiple_choice", fields, rows=choices)


def _objective(
    name: str,
    fields: tuple[str, ...],
    *,
    rows: int,
    optional: tuple[str, ...] = ("text_b",),
) -> Rows:
    """Make an objective that turns each raw row into an example.

    Args:
        fields: the fields of a raw row: its label, then the arguments of its `ARRANGE`, in order.
        rows: the most rows of tokens of an example.
        optional: the fields that a raw row need not have.
    """
    target = "value" if fields[0] == "value" else "label"

    def plan(spec: ExampleSpec) -> OfRow:
        row = functools.partial(
            write_row,
            vocabulary=spec.features["inputs"].vocabulary,
            length=(spec.lengths.get("inputs") or 0) // rows,
        )
        row("")  # raises if the length is wrong, before anything is read
        return functools.partial(_examples, functools.partial(ARRANGE[name], row), fields, target)

    return Rows(
        name=name,
        features=("inputs", "row_numbers", target),
        converters=("decoder_rows",),
        converter_settings={"rows": rows, "target": target},
        plan=plan,
        fields=fields,
        optional=optional,
        has_rows="data/labelled_files.py",
    )


def _examples(
    arrange: Callable[..., list[list[int]]],
    fields: tuple[str, ...],
    target: str,
    raw: Mapping[str, Any],
    generator: np.random.Generator,
) -> list[Example]:
    """Return the example of a raw row: its rows of tokens, one after the other, and its label."""
    del generator
    label, *others = fields
    texts = (
        text_of(raw[field])
        if isinstance(raw[field], str | bytes)
        else [text_of(text) for text in raw[field]]
        for field in others
        if field in raw
    )
    rows = arrange(*texts)
    numbers = np.repeat(np.arange(len(rows)) + 1, [len(tokens) for tokens in rows])
    return [
        {
            "inputs": np.concatenate(rows),
            "row_numbers": numbers,
            target: np.array([raw[label]]),
        }
    ]
