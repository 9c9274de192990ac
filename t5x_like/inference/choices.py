"""Multiple-choice predictions: helpers for all networks, and the prediction of encoders."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array

from t5x_like.batches.labelled_rows import Row
from t5x_like.experiment.text_data import TextData
from t5x_like.inference.encoder_predictions import EncoderPrediction, string_in
from t5x_like.inference.predictor import Batch, Item, Results


@dataclasses.dataclass(frozen=True)
class EncoderChoices(EncoderPrediction):
    """The choice that best fits `text_a`, or `text_a` and `text_b`.

    `prediction` is its text, `answer` its index, and `probabilities` covers all choices.

    Attributes:
        max_rows: maximum choices of an item, C.
    """

    max_rows: int

    kind: ClassVar[str] = "choice"

    def value(self, predicted: Mapping[str, Any]) -> int:
        """Return the index of the choice."""
        return predicted["answer"]

    @classmethod
    def settings_in(cls, text: TextData) -> dict[str, Any]:
        """Return the maximum number of choices."""
        return {"max_rows": text.examples.converter_settings["rows"]}

    def rows(self, item: Item) -> list[Any]:
        """Return one example, with a row for each choice.

        Raises:
            ValueError: the item lacks a field, or has too many choices.
        """
        texts = [string_in(item, name) for name in ("text_a", "text_b") if name in item]
        return [self.writer.of_choices(choices_in(item, most=self.max_rows), *texts)]

    def collate(self, rows: Sequence[Sequence[Row]], *, batch_size: int) -> Batch:
        """Pad examples into the fields of a batch [B, C, L]."""
        tokens, types, segments = np.zeros([3, batch_size, self.max_rows, self.length], np.int32)
        for number, example in enumerate(rows):
            for place, row in enumerate(example):
                here = number, place, slice(len(row.tokens))
                tokens[here], types[here], segments[here] = row.tokens, row.token_types, 1
        return {
            "encoder_input_tokens": tokens,
            "encoder_token_types": types,
            "encoder_segment_ids": segments,
        }

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return the probability of each choice."""
        return {"probabilities": jax.nn.softmax(outputs["logits"])}

    def predict(
        self, item: Item, rows: Sequence[Any], results: Sequence[Results]
    ) -> dict[str, Any]:
        """See the class."""
        return best_choice(item, results[0]["probabilities"])


def choices_in(item: Item, *, most: int) -> list[str]:
    """Return the choices of an item.

    Raises:
        ValueError: it has no choices, more than `most`, or choices that are not strings.
    """
    found = item.get("choices")
    choices = found if isinstance(found, list) else []
    if not 1 <= len(choices) <= most or not all(isinstance(one, str) for one in choices):
        raise ValueError(f"an item needs `choices`, up to {most} strings")
    return choices


def best_choice(item: Item, probabilities: np.ndarray) -> dict[str, Any]:
    """Return the most likely of an item's choices, its index, and the probabilities of all."""
    own = [float(p) for p in probabilities][: len(item["choices"])]
    best = int(np.argmax(own))
    return {"prediction": item["choices"][best], "answer": best, "probabilities": own}
