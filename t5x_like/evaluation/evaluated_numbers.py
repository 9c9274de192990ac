"""The numbers of an evaluation: averages over tasks, JSON."""

import fnmatch
import math
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like.evaluation.intervals import mean
from t5x_like.evaluation.measure import Measure
from t5x_like.experiment.estimates import Estimate
from t5x_like.names import choose, hint

Results = Mapping[str, Mapping[str, float]]  # by task, the numbers by name

AVERAGE = "average"


def directions(
    measures: Mapping[str, Mapping[str, Measure]], parts: Mapping[str, Mapping[str, Any]]
) -> dict[str, bool]:
    """The numbers that compare models, TASK/NUMBER -> whether smaller values are better.

    Args:
        measures: by task, the measures by name.
        parts: as for `averages`.

    Raises:
        ValueError: an average has no parts, a number that does not exist, or both kinds of numbers.
    """
    found = {
        f"{task}/{_prefix(name)}{number}": smaller
        for task, own in measures.items()
        for name, measure in own.items()
        for number, smaller in measure.directions().items()
    }
    averaged = {}
    for average, own in parts.items():
        if not own:
            raise ValueError(f"evaluate.averages.{average} is empty: name the numbers of each task")
        kinds = {
            direction(name, found, setting=f"evaluate.averages.{average}.{part}")
            for part, names in own.items()
            for name in listed(names)
        }
        if len(kinds) > 1:
            raise ValueError(
                f"evaluate.averages.{average} has numbers of which larger ones are better, and "
                "others of which smaller ones are: choose one kind"
            )
        averaged[f"{average}/{AVERAGE}"] = kinds.pop()
    return found | averaged


def direction(name: str, table: Mapping[str, bool], *, setting: str) -> bool:
    """Whether smaller values of a number are better.

    Args:
        name: TASK/NUMBER; the task may be left out if the evaluation has only one.
        table: see `directions`.
        setting: for the message.

    Raises:
        ValueError: no measure gives this number, or it does not compare models.
    """
    for pattern, smaller in table.items():
        if fnmatch.fnmatchcase(name, pattern):
            return smaller
    raise ValueError(f"{setting}={name!r} is no number of this evaluation.{hint(name, table)}")


def numbers(name: str, found: Mapping[str, float]) -> dict[str, float]:
    """The numbers of a measure under their names in an evaluation."""
    return {_prefix(name) + key: value for key, value in found.items()}


def _prefix(measure: str) -> str:
    return "" if measure == "loss" else f"{measure}/"  # the loss has the names of training's log


def listed(names: str | Sequence[str]) -> tuple[str, ...]:
    """The numbers of a part of an average."""
    return (names,) if isinstance(names, str) else tuple(names)


def averages(
    results: Results, parts: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, float]]:
    """The averages of `evaluate.averages`, as the papers make them.

    Each part counts once, by the mean of its numbers: a task with two metrics counts as much as one
    with a single one (Wang et al. 2019, GLUE, section 5).

    Args:
        parts: name of an average -> part -> the name of a number, TASK/NUMBER, or several.

    Returns:
        {name: {"average": value}}.

    Raises:
        ValueError: a number does not exist.
    """
    flat = {f"{task}/{name}": value for task, own in results.items() for name, value in own.items()}
    found = {}
    for average, own in parts.items():
        means = []
        for part, names in own.items():
            where = f"evaluate.averages.{average}.{part}"
            means.append(mean(choose(where, name, flat) for name in listed(names)))
        found[average] = {AVERAGE: mean(means)}
    return found


def to_json(results: Results) -> dict[str, Any]:
    """The numbers of `tasks`, and beside them the `intervals` of those that have one.

    JSON has no infinity and no NaN: they are null.
    """
    return {
        "tasks": {
            task: {name: _finite(value) for name, value in values.items()}
            for task, values in results.items()
        },
        "intervals": {
            task: {
                name: [_finite(bound) for bound in value.interval]
                for name, value in values.items()
                if isinstance(value, Estimate)
            }
            for task, values in results.items()
        },
    }


def _finite(value: float) -> float | None:
    value = float(value)
    return value if math.isfinite(value) else None
