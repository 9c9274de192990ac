"""Labelled text for a network that reads words by their characters: classes and tags.

Raw rows are as in `labelled`.
"""

import numpy as np

from t5x_like.batches.word_rows import WordRow, WordRowWriter
from t5x_like.preprocessing.objectives.labels.labelled import (
    Write,
    objective_of_rows,
    to_text,
)
from t5x_like.preprocessing.objectives.objective import Objective


def word_classification() -> Objective:
    """Predict a class of a text, or of a pair with </S> between the texts.

    inputs: <S> he did not come </S>     characters: of each word     label: the class
    """

    def write_for(writer: WordRowWriter) -> Write:
        def write(label: np.ndarray, *texts: bytes) -> list[dict[str, np.ndarray]]:
            row = writer.of_text(*map(to_text, texts))
            return [_fields(row) | {"label": label[None]}]

        return write

    fields = ("label", "text_a", "text_b")
    return objective_of_rows("word_classification", fields, write_for, make_writer=WordRowWriter)


def word_tagging() -> Objective:
    """Predict a tag for each word; there is no loss on <S> and </S>.

    inputs:       <S> jim henson was </S>
    targets:      0   1   2      0   0
    loss_weights: 0   1   1      1   0
    """

    def write_for(writer: WordRowWriter) -> Write:
        def write(words: np.ndarray, tags: np.ndarray) -> list[dict[str, np.ndarray]]:
            row, places = writer.of_words([to_text(word) for word in words])
            targets, weights = np.zeros([2, len(row.tokens)], np.int32)
            here = places > 0
            targets[places[here]], weights[places[here]] = tags[here], 1
            return [_fields(row) | {"targets": targets, "loss_weights": weights}]

        return write

    return objective_of_rows(
        "word_tagging", ("words", "tags"), write_for, make_writer=WordRowWriter
    )


def _fields(row: WordRow) -> dict[str, np.ndarray]:
    return {"inputs": row.tokens, "characters": row.characters.reshape(-1)}
