"""Learning-rate schedules by name: functions from the step, counted from 0, to the rate."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import optax

from t5x_like import names


def build(
    name: str,
    *,
    learning_rate: float,
    warmup_steps: int = 0,
    decay_steps: int | None = None,
    end_learning_rate: float = 0.0,
    start_learning_rate: float = 0.0,
    schedule_offset: int = 0,
) -> optax.Schedule:
    """Make the schedule with this name.

    The schedule starts at step `schedule_offset`: all earlier steps have its first rate. A run that
    continues from the step of a checkpoint can so have a schedule of its own.

    `rsqrt`: learning_rate / sqrt(max(step, warmup_steps)), the schedule of T5's pretraining (Raffel
    et al. 2020, section 3.1.2). It is constant during the warmup: 0.01 with learning_rate 1 and
    10,000 warmup steps.

    `warmup_rsqrt`: learning_rate * min(n^-0.5, n * warmup_steps^-1.5), with n = step + 1, the
    schedule of the Transformer (Vaswani et al. 2017, equation 3) with learning_rate D^-0.5.

    `linear_rsqrt`: learning_rate * min(1, step / warmup_steps) / sqrt(max(step, warmup_steps)),
    `constant * linear_warmup * rsqrt_decay` in T5X: the Transformer's schedule with n = step.

    For these three, `learning_rate` is a factor, not the peak.

    The other schedules rise linearly from `start_learning_rate` to `learning_rate` at step
    `warmup_steps`. Then `constant` stays there, while `linear` and `cosine` fall to
    `end_learning_rate` at step `decay_steps` (usually the length of the run; it includes the
    warmup), and stay there.

    `constant` and the schedules with a square root ignore `decay_steps` and `end_learning_rate`;
    the latter also ignore `start_learning_rate`.

    Raises:
        ValueError: the name is unknown, or a setting is out of range.
    """
    make = names.choose("optimizer.schedule", name, SCHEDULES)
    if not (learning_rate > 0 and math.isfinite(learning_rate)):
        raise ValueError(f"optimizer.learning_rate is {learning_rate}; it must be above 0")
    if warmup_steps < 0:
        raise ValueError(f"optimizer.warmup_steps is {warmup_steps}; it must be 0 or more")
    if not 0 <= end_learning_rate <= learning_rate:
        raise ValueError(
            f"optimizer.end_learning_rate is {end_learning_rate}; it must lie between 0 and "
            f"optimizer.learning_rate, {learning_rate}"
        )
    if not 0 <= start_learning_rate <= learning_rate:
        raise ValueError(
            f"optimizer.start_learning_rate is {start_learning_rate}; it must lie between 0 and "
            f"optimizer.learning_rate, {learning_rate}"
        )
    if schedule_offset < 0:
        raise ValueError(f"optimizer.schedule_offset is {schedule_offset}; it must be 0 or more")
    rates = _Rates(learning_rate, start_learning_rate, end_learning_rate)
    schedule = make(rates, warmup_steps, decay_steps)
    if not schedule_offset:
        return schedule
    return lambda step: schedule(jnp.maximum(step - schedule_offset, 0))


class _Rates(NamedTuple):
    peak: float
    start: float
    end: float


def _rsqrt(rates: _Rates, warmup_steps: int, decay_steps: int | None) -> optax.Schedule:
    _check_root("rsqrt", warmup_steps, example="T5: 10000")

    def schedule(step):
        return rates.peak / jnp.sqrt(jnp.maximum(jnp.asarray(step, jnp.float32), warmup_steps))

    return schedule


def _warmup_rsqrt(rates: _Rates, warmup_steps: int, decay_steps: int | None) -> optax.Schedule:
    _check_root("warmup_rsqrt", warmup_steps, example="the Transformer: 4000")

    def schedule(step):
        number = jnp.asarray(step, jnp.float32) + 1
        return rates.peak * jnp.minimum(number**-0.5, number * warmup_steps**-1.5)

    return schedule


def _linear_rsqrt(rates: _Rates, warmup_steps: int, decay_steps: int | None) -> optax.Schedule:
    _check_root("linear_rsqrt", warmup_steps, example="T5X: 1000")

    def schedule(step):
        step = jnp.asarray(step, jnp.float32)
        warmup = jnp.minimum(1.0, step / warmup_steps)
        return rates.peak * warmup / jnp.sqrt(jnp.maximum(step, warmup_steps))

    return schedule


def _check_root(name: str, warmup_steps: int, *, example: str) -> None:
    if warmup_steps < 1:
        raise ValueError(
            f"optimizer.warmup_steps is {warmup_steps}; the schedule {name!r} divides by its "
            f"square root and needs 1 or more ({example})"
        )


def _constant(rates: _Rates, warmup_steps: int, decay_steps: int | None) -> optax.Schedule:
    return _after_warmup(optax.constant_schedule(rates.peak), rates, warmup_steps)


def _linear(rates: _Rates, warmup_steps: int, decay_steps: int | None) -> optax.Schedule:
    steps = _steps_of_decay(warmup_steps, decay_steps)
    decay = optax.linear_schedule(rates.peak, rates.end, steps)
    return _after_warmup(decay, rates, warmup_steps)


def _cosine(rates: _Rates, warmup_steps: int, decay_steps: int | None) -> optax.Schedule:
    steps = _steps_of_decay(warmup_steps, decay_steps)
    decay = optax.cosine_decay_schedule(rates.peak, steps, alpha=rates.end / rates.peak)
    return _after_warmup(decay, rates, warmup_steps)


def _after_warmup(schedule: optax.Schedule, rates: _Rates, warmup_steps: int) -> optax.Schedule:
    if warmup_steps == 0:
        return schedule
    warmup = optax.linear_schedule(rates.start, rates.peak, warmup_steps)
    return optax.join_schedules([warmup, schedule], [warmup_steps])


def _steps_of_decay(warmup_steps: int, decay_steps: int | None) -> int:
    if decay_steps is None or decay_steps <= warmup_steps:
        raise ValueError(
            f"optimizer.decay_steps is {decay_steps}; a schedule that decays needs more steps than "
            f"optimizer.warmup_steps, {warmup_steps}: for a shorter run (decay_steps is often "
            "train.steps) set --config.optimizer.warmup_steps, too"
        )
    return decay_steps - warmup_steps


SCHEDULES: dict[str, Callable[[_Rates, int, int | None], optax.Schedule]] = {
    "rsqrt": _rsqrt,
    "warmup_rsqrt": _warmup_rsqrt,
    "linear_rsqrt": _linear_rsqrt,
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
}
