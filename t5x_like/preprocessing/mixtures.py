"""Mixtures of tasks: how often each is sampled (T5, section 3.5.2).

A rate is relative: a task's share of a mixture is its rate divided by the sum of all rates. The
functions here compute rates from e_m, the number of examples of a task's split before
preprocessing. They do so when a mixture is read, not when it is registered, since a source may have
to count its examples.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import seqio

from t5x_like.names import check_settings, choose, hint

Provider: TypeAlias = "seqio.Task | seqio.Mixture"
Rate = Callable[[Provider], float]


def equal() -> Rate:
    """Return the same rate for every task, whatever its size."""
    return lambda task: 1.0


def examples_proportional(*, limit: int | None = None, split: str = "train") -> Rate:
    """Return r_m = min(e_m, K), with K = `limit` in examples; None for no limit.

    Raises:
        ValueError: a limit below 1; later, when the rate is computed, a task of unknown size.
    """
    _check_limit(limit)
    return lambda task: float(number_of_examples(task, limit=limit, split=split))


def temperature(value: float, *, limit: int | None = 2**21, split: str = "train") -> Rate:
    """Return r_m = min(e_m, K)^(1/T), with T = `value` and K = `limit` (2^21 in the paper).

    T = 1 is examples-proportional; the larger T, the closer to equal. (The paper divides r_m by the
    sum before it takes the root; that factor is common to all tasks and cancels in the shares.)

    Raises:
        ValueError: a temperature that is not above 0, a limit below 1; later, a task of unknown
            size.
    """
    if not value > 0:
        raise ValueError(f"temperature={value} must be above 0; 1 is proportional to size")
    _check_limit(limit)
    return lambda task: float(number_of_examples(task, limit=limit, split=split) ** (1 / value))


RATES: dict[str, Callable[..., Rate]] = {
    "equal": equal,
    "examples_proportional": examples_proportional,
    "temperature": temperature,
}


def rate(name: str, **settings: Any) -> Rate:
    """Build a rate by name and settings, such as "temperature" with value=2.

    Raises:
        ValueError: the rate or a setting is unknown, or a setting is missing.
    """
    factory = choose("rate", name, RATES)
    check_settings(f"rate {name}", factory, settings)
    return factory(**settings)


def mixture(name: str, tasks: Sequence[str], *, rate: Rate | Mapping[str, float]) -> seqio.Mixture:
    """Register a mixture, replacing one of the same name.

    Args:
        name: letters, digits and underscores.
        tasks: names of registered tasks, or of mixtures if `rate` is a mapping.
        rate: the function from a task to its rate, see `RATES`; or {name: rate}.

    Raises:
        ValueError: `tasks` is empty, or a task is not registered, repeated, or without a rate.
    """
    if not tasks:
        raise ValueError(f"mixture {name!r} has no tasks")
    allowed = [*seqio.TaskRegistry.names()]
    if isinstance(rate, Mapping):
        allowed += seqio.MixtureRegistry.names()
    for task in tasks:
        if task not in allowed:
            raise ValueError(
                f"task={task!r} of mixture {name!r} is not registered.{hint(task, allowed)}"
            )
        if tasks.count(task) > 1:
            raise ValueError(f"mixture {name!r} has the task {task!r} twice: give it a larger rate")
        if isinstance(rate, Mapping) and task not in rate:
            raise ValueError(f"mixture {name!r} has no rate for the task {task!r}")
    seqio.MixtureRegistry.remove(name)
    rates = [(task, rate[task] if isinstance(rate, Mapping) else rate) for task in tasks]
    return seqio.MixtureRegistry.add(name, rates)


def without(tasks: Sequence[str], left_out: Sequence[str]) -> list[str]:
    """Return the tasks of a mixture that are not left out, for leave-one-out (section 3.5.3).

    Raises:
        ValueError: a task to leave out is not in the mixture; the message has the nearest name.
    """
    for task in left_out:
        choose("data.settings.leave_out", task, dict.fromkeys(tasks))
    return [task for task in tasks if task not in left_out]


def shares(provider: Provider, *, split: str) -> dict[str, float]:
    """Return the share of each task that has the split; shares sum to 1.

    Raises:
        ValueError: no task has the split; a rate cannot be computed, as from a size that the source
            does not know; or the rates are negative or sum to 0.
    """
    if isinstance(provider, seqio.Task):
        return {provider.name: 1.0}
    rates = {task.name: _rate(provider, task) for task in provider.tasks if split in task.splits}
    total = sum(rates.values())
    if min(rates.values(), default=0) < 0 or not total > 0:
        raise ValueError(
            f"the rates of mixture {provider.name!r} on split {split!r} must be 0 or more, and not "
            f"all 0: {rates}"
        )
    return {name: value / total for name, value in rates.items()}


def _rate(provider: seqio.Mixture, task: seqio.Task) -> float:
    try:
        return provider.get_rate(task)
    except (KeyError, TypeError) as error:  # of a function such as seqio.mixing_rate_num_examples
        raise ValueError(
            f"the rate of the task {task.name!r} in mixture {provider.name!r} cannot be computed: "
            f"{type(error).__name__}: {error}. If it depends on the number of examples, give the "
            'source of the task num_input_examples={"train": ...}'
        ) from error


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit} must be 1 or more examples, or None for no limit")


def number_of_examples(task: Provider, *, split: str, limit: int | None = None) -> int:
    """Return the number of examples of a split, at most `limit`.

    Raises:
        ValueError: the task's source does not know it.
    """
    count = task.num_input_examples(split) if split in task.splits else None
    if count is None:
        raise ValueError(
            f"the size of split {split!r} of task {task.name!r} is not known: give its source "
            f"num_input_examples={{{split!r}: ...}}, or the mixture a mapping of rates"
        )
    return min(count, limit or count)
