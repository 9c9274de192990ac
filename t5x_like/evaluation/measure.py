"""The interface of measures, and helpers for the rows that they read."""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from t5x_like.evaluation.metrics import METRICS
from t5x_like.names import hint

Row = Mapping[str, Any]  # fields: a string, or a list of strings
# (numbers by name, each a `metric.Estimate` if rows were measured; the model's prediction for each
# row, as JSON values)
Measured = tuple[dict[str, float], list[dict[str, Any]]]


class MeasureError(Exception):
    """A measure cannot read a row, or has a setting that does not fit the rows."""


@dataclasses.dataclass(frozen=True)
class Measure(abc.ABC):
    """A frozen dataclass, whose fields are its settings in a config's `evaluate.measures`.

    Attributes:
        needs: methods of `resources.MeasureResources`, whose results are the arguments of
            `measure`.
        measure: computes a `Measured`. With several processes all call it, with the same rows.
    """

    needs: ClassVar[tuple[str, ...]]
    measure: ClassVar[Callable[..., Measured]]

    @property
    def generates(self) -> bool:
        """Whether the model generates texts, which needs a copy of its layers on the devices."""
        return False

    @abc.abstractmethod
    def directions(self) -> Mapping[str, bool]:
        """Return {number that compares models: whether smaller values are better}.

        A name may contain "*" as a wildcard.
        """

    def check(self, prediction: str) -> None:  # noqa: B027 - most measures fit any model
        """Check that the measure fits a model's predictions, before anything is computed.

        Args:
            prediction: `Task.prediction` of the model's head.

        Raises:
            ValueError: it does not fit.
        """


@dataclasses.dataclass(frozen=True)
class RowMeasure(Measure):
    """A measure that reads rows of the source, before any objective.

    Attributes:
        cleaned: whether to clean rows as in training (preprocessing/cleaning.py), which for
            instance removes indentation.
        every: during training, measure at multiples of so many steps, and at the last step; 0:
            never.
    """

    cleaned: bool = dataclasses.field(default=False, kw_only=True)
    every: int = dataclasses.field(default=0, kw_only=True)

    needs: ClassVar[tuple[str, ...]] = ("text_model", "rows")


def text_of(row: Row, name: str) -> str:
    """Return the string in a field of a row.

    Raises:
        ValueError: the row has no such field, or it is not a string.
    """
    if name not in row:
        raise ValueError(f"a row has no field {name!r}.{hint(name, row)}")
    if not isinstance(row[name], str):
        raise ValueError(f"the field {name!r} of a row must be a string, not {row[name]!r:.80}")
    return row[name]


def answers_of(row: Row) -> list[str]:
    """Return the right texts of a row: its field `answers`, or otherwise [`targets`].

    Raises:
        ValueError: the row has neither field, or no answer.
    """
    answers = list(row["answers"]) if "answers" in row else [text_of(row, "targets")]
    if not answers:
        raise ValueError(f"a row has no answer: {dict(row)!r:.120}")
    return answers


def choices_of(row: Row) -> list[str]:
    """Return the field `choices` of a row.

    Raises:
        ValueError: the row has fewer than two choices, or `targets` is not a choice.
    """
    choices = list(row.get("choices", ()))
    if len(choices) < 2:
        raise ValueError(f"a row needs a field `choices`, two strings or more, not {choices!r:.80}")
    if text_of(row, "targets") not in choices:
        raise ValueError(
            f"targets={row['targets']!r:.80} is not one of the choices."
            f"{hint(row['targets'], choices)}"
        )
    return choices


def chance_accuracy(rows: Sequence[Row]) -> float:
    """Return the expected accuracy of random choices: the mean share of right choices in a row."""
    shares = [len({*answers_of(row)} & {*choices_of(row)}) / len(choices_of(row)) for row in rows]
    return sum(shares) / len(shares)


def check_group(name: str, group: str) -> None:
    """Check that `group` is set if a metric needs groups.

    Args:
        name: the name of the metric.
        group: the setting of the measure; "" if it is not set.

    Raises:
        ValueError: it is not set.
    """
    if METRICS[name].grouped and not group:
        raise ValueError(
            f"group is not set: the metric {name} needs the field with the key of a group"
        )


def in_groups(rows: Sequence[Row], targets: Sequence[Any], *, group: str) -> list[dict[str, Any]]:
    """Return the targets in the form that metrics of groups read (`metrics.groups`).

    Args:
        group: the field of a row with the key of its group.

    Raises:
        ValueError: a row lacks the field.
    """
    keys = [text_of(row, group) for row in rows]
    return [{"group": key, "value": value} for key, value in zip(keys, targets, strict=True)]
