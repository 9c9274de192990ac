"""Predictions of networks that read words as characters: classes of texts, tags of words."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5x_like.batches.labelled_rows import WordRow, WordRowWriter
from t5x_like.inference.encoder_predictions import Classes, EncoderPrediction, Tags
from t5x_like.inference.predictor import Batch
from t5x_like.vocabularies.words import LONGEST


@dataclasses.dataclass(frozen=True)
class _OfWords(EncoderPrediction):
    """A prediction from rows <S> words </S>.

    Raises:
        ValueError: the vocabulary has pieces rather than words.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "writer", WordRowWriter(self.vocabulary, length=self.length))

    def collate(self, rows: Sequence[Any], *, batch_size: int) -> Batch:
        """Pad rows into the fields of a batch, which include the characters [B, L, 50]."""
        batch = super().collate(rows, batch_size=batch_size)
        characters = np.zeros([batch_size, self.length, LONGEST], np.int32)
        row: WordRow
        for number, row in enumerate(rows):
            characters[number, : len(row.characters)] = row.characters
        return batch | {"encoder_characters": characters}


@dataclasses.dataclass(frozen=True)
class TextClass(_OfWords, Classes):
    """The class of `text_a`, or of the pair with `text_b`, and all `probabilities`."""


@dataclasses.dataclass(frozen=True)
class WordTags(_OfWords, Tags):
    """A tag for each of `words`, a list or a text; None for words beyond the row's length."""
