"""LaMDA's metrics of a dialog model's replies, labelled by the phrases of a row."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like.batches.dialog_rows import ATTRIBUTES
from t5x_like.evaluation.measure import Measured, Row, RowMeasure
from t5x_like.evaluation.metrics import METRICS
from t5x_like.inference import dialog_model
from t5x_like.inference.dialog_model import DialogModel
from t5x_like.inference.text_model import TextModel

_NUMBERS = (
    *("sensibleness", "specificity", "interestingness", "safety"),
    *("groundedness", "informativeness", "citation_accuracy"),
)


@dataclasses.dataclass(frozen=True)
class Replies(RowMeasure):
    """The metrics of `metrics.dialog_labels`, for the reply to each `context`.

    A row has lists of phrases; a reply that contains one of a list's phrases, as whole words, gets
    the list's label: `sensible`, `specific`, `interesting`, `unsafe`; `claims`, phrases about the
    world, which are supported if all that occur in the reply are in `supported`; and `sources`,
    which a reply cites.

    Attributes:
        dialog: settings of the dialog model (`inference.dialog_model`).
    """

    dialog: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        dialog_model.read_settings(self.dialog)

    @property
    def generates(self) -> bool:
        """Always True."""
        return True

    def directions(self) -> Mapping[str, bool]:
        """See `Measure`."""
        return dict.fromkeys(_NUMBERS, False)

    def measure(self, model: TextModel, rows: Sequence[Row]) -> Measured:
        """Return `Estimate`s of the metrics, and `calls` of the toolset and `refused` per reply.

        Raises:
            ValueError: a row lacks a field, or the dialog settings do not fit the model.
        """
        asked = [_list(row, "context") for row in rows]
        replies = DialogModel(model, dialog_model.read_settings(self.dialog)).reply(asked)
        labels = [labels_of(reply.text, row) for reply, row in zip(replies, rows, strict=True)]
        texts = [reply.text for reply in replies]
        results: dict[str, float] = {}
        for name in _NUMBERS:
            results |= METRICS[name].statistics(labels, texts).estimates()
        results["calls"] = sum(len(reply.calls) for reply in replies) / len(rows)
        results["refused"] = sum(reply.base is None for reply in replies) / len(rows)
        listed = [
            {"context": context, "prediction": reply.text, "labels": right}
            for context, reply, right in zip(asked, replies, labels, strict=True)
        ]
        return results | {"examples": len(rows)}, listed


def labels_of(reply: str, row: Row) -> dict[str, int]:
    """Label a reply by the phrases of a row; see `Replies`.

    Raises:
        ValueError: the row lacks a list of phrases.
    """
    words = f" {' '.join(reply.split())} "

    def those_in(name: str) -> set[str]:
        return {phrase for phrase in _list(row, name) if f" {phrase} " in words}

    claims = those_in("claims")
    return {
        **{name: int(bool(those_in(name))) for name in ATTRIBUTES},
        "claims": int(bool(claims)),
        "supported": int(claims <= those_in("supported")),
        "cites": int(bool(those_in("sources"))),
    }


def _list(row: Row, name: str) -> list[str]:
    value = row.get(name)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError(f"a row needs a list of strings in the field {name!r}, not {value!r:.80}")
    return value
