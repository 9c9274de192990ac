"""Labelled text for a network that reads words by their characters: classes and tags.

Raw rows are as in `labelled`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from t5x_like.batches.word_rows import WordRow, WordRowWriter
from t5x_like.objectives.labelled import OF_CLASSES, OF_TAGS, Write, objective_of_rows, texts_of
from t5x_like.objectives.objective import Example, Rows, of_encoder, text_of


def word_classification() -> Rows:
    """Predict a class of a text, or of a pair with </S> between the texts.

    inputs: <S> he did not come </S>     characters: of each word     label: the class
    """

    def write_for(writer: WordRowWriter) -> Write:
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
    """Predict a tag for each word; there is no loss on <S> and </S>.

    inputs:       <S> jim henson was </S>
    targets:      0   1   2      0   0
    loss_weights: 0   1   1      1   0
    """

    def write_for(writer: WordRowWriter) -> Write:
        def write(raw: Mapping[str, Any]) -> list[Example]:
            row, first = writer.of_words([text_of(word) for word in raw["words"]])
            targets, weights = np.zeros([2, len(row.tokens)], np.int32)
            here = first > 0
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


def _features(row: WordRow) -> Example:
    return {"inputs": row.tokens, "characters": row.characters.reshape(-1)}
