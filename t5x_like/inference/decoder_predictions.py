"""Predictions of decoders fine-tuned on labelled text: a class, a number, a choice."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array

from t5x_like.batches.labelled_rows import ARRANGE, TokenRows, write_row
from t5x_like.experiment.data_setup import DataSetup
from t5x_like.inference.encoder_predictions import best_choice, choices_in, string_in
from t5x_like.inference.predictor import Item, NumpyBatch, OutputArrays, Prediction


@dataclasses.dataclass(frozen=True)
class DecoderPrediction(Prediction):
    """A prediction from the last token of each row (Radford et al. 2018, section 3.3).

    Attributes:
        objective: the objective of the fine-tuning, a name in `labelled_rows.ARRANGE`.
        max_rows: maximum rows of an example, C.
    """

    objective: str
    max_rows: int

    @classmethod
    def settings_in(cls, text: DataSetup) -> dict[str, Any]:
        """Return the objective, and the rows of its examples."""
        rows = text.examples.converter_settings["rows"]
        return {"objective": text.data.objective, "max_rows": rows}

    def rows(self, item: Item) -> list[TokenRows]:
        """Return one example, with one row, or a row for each order of two texts.

        Raises:
            ValueError: the item lacks a field.
        """
        return self._arrange(*self._texts(item))

    def collate(self, rows: Sequence[TokenRows], *, batch_size: int) -> NumpyBatch:
        """Pad examples into the fields of a batch [B, C, L]."""
        tokens, segments = np.zeros([2, batch_size, self.max_rows, self.length], np.int32)
        for number, example in enumerate(rows):
            for choice, row in enumerate(example):
                tokens[number, choice, : len(row)] = row
                segments[number, choice, : len(row)] = 1
        return {"decoder_input_tokens": tokens, "decoder_segment_ids": segments}

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return the probability of each class or choice."""
        return {"probabilities": jax.nn.softmax(outputs["label_logits"])}

    def _texts(self, item: Item) -> list[str]:
        both = self.objective in ("gpt_similarity", "gpt_regression") or "text_b" in item
        return [string_in(item, name) for name in ("text_a", *(["text_b"] if both else []))]

    def _arrange(self, *fields: Any) -> list[TokenRows]:
        write = functools.partial(write_row, vocabulary=self.vocabulary, length=self.length)
        return [ARRANGE[self.objective](write, *fields)]


@dataclasses.dataclass(frozen=True)
class DecoderClasses(DecoderPrediction):
    """The class of `text_a`, or of the pair with `text_b`, and all `probabilities`."""

    kind: ClassVar[str] = "class"
    has_labels: ClassVar[bool] = True

    def target(self, label: int) -> str:
        """Return the name of a class."""
        return self.label(label)

    def predict(
        self, item: Item, rows: Sequence[TokenRows], results: Sequence[OutputArrays]
    ) -> dict[str, Any]:
        """See the class."""
        probabilities = [float(p) for p in results[0]["probabilities"]]
        named = {self.label(number): p for number, p in enumerate(probabilities)}
        return {"prediction": self.label(int(np.argmax(probabilities))), "probabilities": named}


@dataclasses.dataclass(frozen=True)
class DecoderNumber(DecoderPrediction):
    """A number for the pair of `text_a` and `text_b`: regression."""

    kind: ClassVar[str] = "number"

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return the number."""
        return {"value": outputs["label_logits"][:, 0]}

    def predict(
        self, item: Item, rows: Sequence[TokenRows], results: Sequence[OutputArrays]
    ) -> dict[str, Any]:
        """See the class."""
        return {"prediction": float(results[0]["value"])}


@dataclasses.dataclass(frozen=True)
class Choices(DecoderPrediction):
    """The choice that best fits `text_a`, or `text_a` followed by `text_b`.

    `prediction` is its text, `answer` its index, and `probabilities` covers all choices.
    """

    kind: ClassVar[str] = "choice"

    def value(self, predicted: Mapping[str, Any]) -> int:
        """Return the index of the choice."""
        return predicted["answer"]

    def rows(self, item: Item) -> list[TokenRows]:
        """Return one example, with a row for each choice.

        Raises:
            ValueError: the item lacks a field, or has more choices than an example has rows.
        """
        return self._arrange(choices_in(item, most=self.max_rows), *self._texts(item))

    def predict(
        self, item: Item, rows: Sequence[TokenRows], results: Sequence[OutputArrays]
    ) -> dict[str, Any]:
        """See the class."""
        return best_choice(item, results[0]["probabilities"])
