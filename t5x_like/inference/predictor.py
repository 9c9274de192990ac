"""Run a model on items in batches, and convert its outputs to predictions."""

import abc
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array, PyTree

from t5x_like import stop_signal
from t5x_like.batches.conversion import NumpyBatch
from t5x_like.experiment import data_side
from t5x_like.experiment.data_setup import DataSetup
from t5x_like.partitioning import fetch
from t5x_like.pretrained import Pretrained
from t5x_like.vocabularies import Vocabulary

Item = Mapping[str, Any]  # the fields of an example without its label: `text_a`, `words`, ...
OutputArrays = Mapping[str, np.ndarray]  # of one row

_FIELDS = ("text_a", "text_b", "choices", "words", "question", "context")
_LABELS = ("label", "value", "tags", "answers", "answer")


@dataclasses.dataclass(frozen=True)
class Prediction(abc.ABC):
    """Converts items to rows of a batch, and the outputs of a network to predictions.

    Attributes:
        vocabulary: tokenizes the items.
        labels: names of the classes or tags; a class without a name is predicted as its number.
        length: tokens per row.
    """

    vocabulary: Vocabulary
    labels: Sequence[str]
    length: int

    kind: ClassVar[str] = ""  # of prediction, for choosing metrics: "class", "number", ...
    has_labels: ClassVar[bool] = False  # whether it predicts classes or tags with names
    from_batches: ClassVar[bool] = False  # whether held-out examples come from batches

    @classmethod
    def settings_in(cls, text: DataSetup) -> dict[str, Any]:
        """Return the settings that a config has under `data`; all others are under `predict`."""
        return {}

    @abc.abstractmethod
    def rows(self, item: Item) -> list[Any]:
        """Tokenize an item into one row or several.

        Raises:
            ValueError: the item lacks a field.
        """

    @abc.abstractmethod
    def collate(self, rows: Sequence[Any], *, batch_size: int) -> NumpyBatch:
        """Pad rows into the fields of a batch, which is filled up with padding rows."""

    @abc.abstractmethod
    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return the arrays that `predict` needs, from the network's outputs, [B, ...]; traced."""

    @abc.abstractmethod
    def predict(
        self, item: Item, rows: Sequence[Any], results: Sequence[OutputArrays]
    ) -> dict[str, Any]:
        """Return the `prediction` for an item, and further results, as JSON values."""

    def example(self, row: Mapping[str, Any]) -> tuple[Item, Any]:
        """Split a held-out row into an item and its label."""
        values = {name: data_side.plain(value) for name, value in row.items()}
        label = next(values[name] for name in _LABELS if name in values)
        return {name: values[name] for name in _FIELDS if name in values}, label

    def can_predict(self, row: Mapping[str, Any]) -> bool:
        """Return whether a held-out row has something to predict."""
        return True

    def target(self, label: Any) -> Any:
        """Convert the label of a held-out row to the form of `value`."""
        return label

    def value(self, predicted: Mapping[str, Any]) -> Any:
        """Return the part of a prediction that metrics compare."""
        return predicted["prediction"]

    def scores(self, predicted: Mapping[str, Any]) -> list[float]:
        """Return the probabilities of all classes or choices, in order."""
        probabilities = predicted["probabilities"]
        return list(probabilities.values() if isinstance(probabilities, Mapping) else probabilities)

    def label(self, number: int) -> str:
        """Return the name of a class or tag."""
        return self.labels[number] if number < len(self.labels) else str(number)


class Predictor:
    """Run a model on items in batches of `batch_size` rows.

    Args:
        order: for each label of the data, the index of its output, if the orders differ.
    """

    def __init__(
        self,
        pretrained: Pretrained,
        prediction: Prediction,
        *,
        batch_size: int,
        order: Sequence[int] | None = None,
    ):
        self.prediction = prediction
        self._pretrained, self.batch_size = pretrained, batch_size

        def results(params: PyTree, batch: Mapping[str, Array]) -> dict[str, Array]:
            outputs = pretrained.module.apply({"params": params}, batch)
            if order is not None:
                outputs = {**outputs, "logits": outputs["logits"][..., np.array(order)]}
            return prediction.results(outputs, batch)

        self._results = jax.jit(results)

    def __call__(self, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Predict each item; with several processes call it on all, with the same items.

        Returns:
            `prediction` and more for each item, see the subclasses of `Prediction`.

        Raises:
            ValueError: an item lacks a field.
        """
        rows = [self._rows(item) for item in items]
        flat = [row for item_rows in rows for row in item_rows]
        results: list[OutputArrays] = []
        for start in range(0, len(flat), self.batch_size):
            results += self._run(flat[start : start + self.batch_size])
            stop_signal.between_batches()
        predicted = []
        for item, item_rows in zip(items, rows, strict=True):
            predicted.append(self.prediction.predict(item, item_rows, results[: len(item_rows)]))
            results = results[len(item_rows) :]
        return predicted

    def _rows(self, item: Item) -> list[Any]:
        try:
            return self.prediction.rows(item)
        except ValueError as error:
            shown = json.dumps(item, default=str, ensure_ascii=False)
            raise ValueError(f"{error}: {shown:.200}") from error

    def _run(self, rows: Sequence[Any]) -> list[OutputArrays]:
        # All batches have one shape, so that the program is compiled only once.
        batch = self.prediction.collate(rows, batch_size=self.batch_size)
        with self._pretrained.layout():
            outputs = self._results(self._pretrained.params, self._pretrained.put(batch))
        arrays = fetch(outputs)
        return [{name: array[n] for name, array in arrays.items()} for n in range(len(rows))]
