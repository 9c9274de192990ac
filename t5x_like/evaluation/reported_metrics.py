"""The numbers that an evaluation reports: averages over tasks, their directions, and JSON."""

import fnmatch
import math
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like.evaluation.measure import Measure
from t5x_like.evaluation.metrics.metric import mean
from t5x_like.experiment.reporting import Estimate
from t5x_like.names import choose, hint

Results = Mapping[str, Mapping[str, float]]  # {task: {name: number}}

AVERAGE = "average"


def directions(
    measures: Mapping[str, Mapping[str, Measure]], parts: Mapping[str, Mapping[str, Any]]
) -> dict[str, bool]:
    """Return {TASK/NUMBER: whether smaller values are better} of the numbers that compare models.

    Args:
        measures: {task: {name: measure}}.
        parts: see `averages`.

    Raises:
        ValueError: an average has no parts, names a number that does not exist, or mixes numbers
            of both directions.
    """
    smaller_is_better = {
        f"{task}/{_prefix(name)}{number}": smaller
        for task, task_measures in measures.items()
        for name, measure in task_measures.items()
        for number, smaller in measure.directions().items()
    }
    averaged = {}
    for average, names_of_parts in parts.items():
        if not names_of_parts:
            raise ValueError(f"evaluate.averages.{average} is empty: name the numbers of each task")
        kinds = {
            direction(name, smaller_is_better, setting=f"evaluate.averages.{average}.{part}")
            for part, names in names_of_parts.items()
            for name in _checked_names(f"evaluate.averages.{average}.{part}", names)
        }
        if len(kinds) > 1:
            raise ValueError(
                f"evaluate.averages.{average} mixes numbers where larger is better with numbers "
                "where smaller is better: choose one kind"
            )
        averaged[f"{average}/{AVERAGE}"] = kinds.pop()
    return smaller_is_better | averaged


def _checked_names(setting: str, names: Any) -> tuple[str, ...]:
    if not isinstance(names, str | list | tuple):
        raise ValueError(f"{setting}={names!r} must be the name of a number, or a tuple of names")
    return listed(names)


def direction(name: str, table: Mapping[str, bool], *, setting: str) -> bool:
    """Return whether smaller values of a number are better.

    Args:
        name: TASK/NUMBER.
        table: see `directions`.
        setting: the setting that names the number, for the error message.

    Raises:
        ValueError: no measure computes this number, or it does not compare models.
    """
    # TERM/NAME of a loss, where TERM is any, has the form of MEASURE/NAME.
    prefix = name.rpartition("/")[0]
    own = [pattern for pattern in table if pattern.startswith(f"{prefix}/")]
    for pattern in own or table:
        if fnmatch.fnmatchcase(name, pattern):
            return table[pattern]
    raise ValueError(f"{setting}={name!r} is not a number of this evaluation.{hint(name, table)}")


def numbers(name: str, measured: Mapping[str, float]) -> dict[str, float]:
    """Prefix the numbers of a measure with its name, except for the loss."""
    return {_prefix(name) + key: value for key, value in measured.items()}


def _prefix(measure: str) -> str:
    return "" if measure == "loss" else f"{measure}/"  # as in the training log


def listed(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the numbers of a part of an average."""
    return (names,) if isinstance(names, str) else tuple(names)


def averages(
    results: Results, parts: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, float]]:
    """Compute the averages of `evaluate.averages`, as the papers do.

    Each part counts equally, by the mean of its numbers: a task with two metrics counts as much as
    a task with one (Wang et al. 2019, GLUE, section 5).

    Args:
        results: {task: {name: number}}.
        parts: {average: {part: TASK/NUMBER, or several}}.

    Returns:
        {name: {"average": value}}.

    Raises:
        ValueError: a number does not exist.
    """
    flat = {
        f"{task}/{name}": value
        for task, task_numbers in results.items()
        for name, value in task_numbers.items()
    }
    computed = {}
    for average, names_of_parts in parts.items():
        means = []
        for part, names in names_of_parts.items():
            where = f"evaluate.averages.{average}.{part}"
            means.append(mean(choose(where, name, flat) for name in listed(names)))
        computed[average] = {AVERAGE: mean(means)}
    return computed


def to_json(results: Results) -> dict[str, Any]:
    """Return {"tasks": the numbers, "intervals": the intervals of `Estimate`s}.

    Infinity and NaN, which JSON lacks, become null.
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
