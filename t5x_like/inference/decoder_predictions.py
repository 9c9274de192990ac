"""What a decoder that was tuned on labelled text says of texts: a class, or which answer fits."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from t5x_like.preprocessing.objectives.labels.decoder_rows import ARRANGE, Rows, write_row
from t5x_like.vocabularies import Vocabulary

Item = Mapping[str, Any]  # `text_a`, `text_b`, `choices`


@dataclasses.dataclass(frozen=True)
class Extracted:
    """Asks a `DecoderClassifier` as its objective did in training.

    It says `prediction`, a class or the text of a choice, and the `probabilities` of all.

    Attributes:
        objective: one of `extraction.ARRANGE`.
        labels: names of the classes.
        length: tokens a row.
        rows_of_one: rows of an example, at the most.
    """

    objective: str
    vocabulary: Vocabulary
    labels: Sequence[str]
    length: int
    rows_of_one: int

    def rows(self, item: Item) -> list[Rows]:
        """One example.

        Raises:
            ValueError: the item lacks a field, or has more choices than rows.
        """
        names = [name for name in ("text_a", "text_b") if name == "text_a" or name in item]
        wanted = ["text_a", "text_b"] if self.objective == "gpt_similarity" else names
        for name in wanted:
            if not isinstance(item.get(name), str):
                raise ValueError(f"a row needs the string {name!r}, and has {', '.join(item)}")
        values: list[Any] = [item[name] for name in wanted]
        if self.objective == "gpt_multiple_choice":
            values.insert(0, self._choices(item))
        write = functools.partial(write_row, vocabulary=self.vocabulary, length=self.length)
        return [ARRANGE[self.objective](write, *values)]

    def lay_out(
        self, rows: Sequence[Rows], *, length: int, batch_size: int
    ) -> dict[str, np.ndarray]:
        """Examples as the fields of a batch [B, C, L]."""
        tokens, segments = np.zeros([2, batch_size, self.rows_of_one, length], np.int32)
        for number, example in enumerate(rows):
            for place, row in enumerate(example):
                tokens[number, place, : len(row)] = row
                segments[number, place, : len(row)] = 1
        return {"decoder_input_tokens": tokens, "decoder_segment_ids": segments}

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """The probability of each class or choice."""
        return {"probabilities": jax.nn.softmax(outputs["label_logits"])}

    def say(
        self, item: Item, rows: Sequence[Rows], results: Sequence[Mapping[str, np.ndarray]]
    ) -> dict[str, Any]:
        """See the class; of choices also `answer`, the number of the one that is said."""
        probabilities = [float(p) for p in results[0]["probabilities"]]
        best = int(np.argmax(probabilities))
        if self.objective == "gpt_multiple_choice":
            kept = probabilities[: len(item["choices"])]
            return {"prediction": item["choices"][best], "answer": best, "probabilities": kept}
        named = dict(zip(self.labels, probabilities, strict=True))
        return {"prediction": self.labels[best], "probabilities": named}

    def _choices(self, item: Item) -> list[str]:
        choices = item.get("choices")
        if not isinstance(choices, list) or not 1 <= len(choices) <= self.rows_of_one:
            raise ValueError(f"a row needs `choices`, up to {self.rows_of_one} strings")
        return choices
