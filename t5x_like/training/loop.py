"""The training loop: keeps the device busy, and logs, evaluates, saves and stops at the right step.

The host runs ahead of the device: two steps are queued behind the running step, and a thread reads
the next batch. Metrics are summed on the device and fetched once computed, so that neither host nor
device waits for the other.
"""

import collections
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import logging
from jaxtyping import Array, Int

from t5x_like.stop_signal import StopSignal
from t5x_like.training import metrics as metrics_lib
from t5x_like.training.metrics import Metrics
from t5x_like.training.profile import Profile
from t5x_like.training.step import SKIPPED, TrainState
from t5x_like.training.watchdog import Watchdog

# Steps queued on the device: enough that it never waits, few enough to stop within seconds.
_STEPS_IN_FLIGHT = 2
# So many skipped steps in a row end the run: the parameters will not recover.
_MOST_SKIPPED = 10

_global_norm = jax.jit(optax.tree.norm)


class NonFiniteError(FloatingPointError):
    """A loss, gradient or parameter is NaN or infinite.

    Attributes:
        step: the first step at which it was found.
    """

    STATUS = 3  # the exit status of a run that ends with this error

    def __init__(self, message: str, *, step: int):
        super().__init__(message)
        self.step = step


class Writer(Protocol):
    """The interface of a metrics writer, such as `clu.metric_writers.MetricWriter`."""

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the metrics of a step."""

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Write images [1, height, width, 1] of a step."""

    def flush(self) -> None:
        """Write everything that is buffered to disk."""


class Saver(Protocol):
    """The interface of a checkpoint writer, such as `t5x_like.checkpoints.Checkpoints`."""

    def due(self, step: int) -> bool:
        """Return whether to save at this step."""

    def save(self, step: int, state: Any, data_state: Future[Mapping[int, bytes] | None]) -> None:
        """Copy the state, and write it and the position in the data in the background."""

    def wait(self) -> None:
        """Block until all checkpoints are written."""


class Batches(Protocol):
    """The interface of a run's batches, such as `several_tasks.TaskBatches`.

    Only one thread uses it at a time.
    """

    def __next__(self) -> tuple[str, Any]:
        """Return a task's name ("" in a run of one task) and this process's part of a batch."""

    def state(self) -> Mapping[int, bytes] | None:
        """Return the position in the data; None if it cannot be saved."""


@dataclasses.dataclass(frozen=True)
class StepCost:
    """The cost of one step on all devices together, from which rates are computed.

    Attributes:
        tokens, examples: per step.
        flops: model FLOPs per step (`flops.training`); None if unknown.
        peak_flops: the peak FLOP/s of all devices together; None if unknown.
    """

    tokens: float
    examples: float
    flops: float | None = None
    peak_flops: float | None = None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The state at the end of training.

    Attributes:
        interrupted: whether a signal ended training, perhaps at the last step.
        stopped: whether an evaluation ended training (`stop_after`).
    """

    state: TrainState
    interrupted: bool
    stopped: bool = False


def fit(
    state: TrainState,
    *,
    train_steps: Mapping[str, Callable[[TrainState, Any], tuple[TrainState, Metrics]]],
    batches: Batches,
    put: Callable[[Any], Any],
    steps: int,
    log: "Log",
    checkpoints: Saver | None = None,
    evaluate: Callable[[TrainState], Mapping[str, Any]] | None = None,
    evaluate_every: int = 0,
    evaluate_first: bool = False,
    stop_after: Callable[[int, Mapping[str, Any]], bool] | None = None,
    watchdog: Watchdog | None = None,
    profile: Profile | None = None,
) -> Outcome:
    """Train from `state.step` to `steps`, or to the end of the data; call it on all processes.

    SIGTERM or Ctrl-C ends the run after the current step and saves it; a second Ctrl-C kills it.

    Args:
        state: the initial state; invalid afterwards if a training step donates it.
        train_steps: {task: jitted step of `make_train_step`}; {"": step} for one task.
        batches: the batches from `state.step` on; they must end on all processes at once.
        put: makes global arrays from this process's part of a batch; called in another thread.
        steps: the last step.
        log: publishes the metrics.
        checkpoints: saves the state at the steps that are due and at the last step.
        evaluate: a function from a state to its metrics (see `metrics.compute`), called every
            `evaluate_every` steps and, unless a signal came, at the end.
        evaluate_every: 0 to evaluate only at the end.
        evaluate_first: whether to also evaluate `state` before the first step.
        stop_after: called with the step and the published metrics of each evaluation; returns
            whether to end training, which must be the same on all processes.
        watchdog: ends the process if a step, an evaluation or a save takes too long.
        profile: traces some of the steps.

    Raises:
        NonFiniteError: a loss, gradient or parameter is not finite. The newest checkpoint is from
            before that step.
    """
    step, interrupted, stopped, profile = int(state.step), False, False, profile or Profile()
    with StopSignal() as stop, watchdog or Watchdog() as watchdog, ThreadPoolExecutor(1) as thread:
        if evaluate is not None and evaluate_first:
            with watchdog.paused(), stop.cutting_short():
                stopped = _evaluated(state, log, evaluate, stop_after)
        newest = _read(batches, put) if step < steps and not stopped else None
        while newest is not None and not stopped:
            task, batch = newest
            profile.before(step + 1)
            with watchdog.step(task):
                state, metrics = train_steps[task](state, batch)
            step += 1
            profile.after(step, metrics)
            interrupted = stop.agreed()
            last = interrupted or step == steps
            due = last or (checkpoints is not None and checkpoints.due(step))
            position = thread.submit(batches.state) if due else None  # before the next read
            following = None if last else thread.submit(_read, batches, put)
            log.add(metrics, task=task, step=step, steps_left=steps - step)
            if following is not None and not due and following.result() is None:
                due, position = True, thread.submit(batches.state)
            if checkpoints is not None and position is not None:
                with watchdog.paused():
                    log.require_finite(state)
                    checkpoints.save(step, state, position)
            newest = None if following is None else following.result()
            at_evaluation = newest is None or step % (evaluate_every or steps) == 0
            if evaluate is not None and not interrupted and at_evaluation:
                with watchdog.paused(), stop.cutting_short():
                    stopped = _evaluated(state, log, evaluate, stop_after)
                if due and stop.has_cut:  # saved, so a resumed run begins with this evaluation
                    interrupted, newest = True, None
        if step < steps and not interrupted and not stopped:
            logging.warning("the data ended at step %d of %d", step, steps)
        with watchdog.paused():
            profile.close()
            log.finish()
            if checkpoints is not None:
                checkpoints.wait()
    return Outcome(state, interrupted or stop.has_cut, stopped)


def _evaluated(
    state: TrainState,
    log: "Log",
    evaluate: Callable[[TrainState], Mapping[str, Any]],
    stop_after: Callable[[int, Mapping[str, Any]], bool] | None,
) -> bool:
    """Evaluate a state, and return whether to end training."""
    values = log.evaluate(evaluate, state)
    return stop_after is not None and stop_after(int(state.step), values)


class Log:
    """Publishes the metrics of a run: means over the steps between two logs, rates, time left.

    Args:
        writer: gets the training metrics as `train/<name>` (`train/<task>/<name>` in a run of
            several tasks), and evaluation metrics under their unchanged names. Arrays are written
            as images with a pixel for each value.
        every: steps from one log to the next; the last step is logged too.
        cost: {task: cost of a step}, {"": cost} in a run of one task, for tokens/s, examples/s and
            utilization. Compilation and evaluation do not count as time.
        hooks: called with the step and the metrics of each log, for instance to show progress.
    """

    def __init__(
        self,
        writer: Writer,
        *,
        every: int,
        cost: Mapping[str, StepCost],
        hooks: Sequence[Callable[[int, Mapping[str, Any]], None]] = (),
    ):
        if every < 1:
            raise ValueError(f"train.log_every={every}: must be 1 or more")
        self._writer, self._every, self._cost, self._hooks = writer, every, cost, hooks
        self._open = _Interval()
        self._closed: collections.deque[_Interval] = collections.deque()  # not yet published
        self._queued: collections.deque[Any] = collections.deque()
        self._since: float | None = None
        self._compiled: set[str] = set()
        self._skipped: Int[Array, ""] | int = 0  # number of skipped steps in a row

    def add(self, metrics: Metrics, *, task: str, step: int, steps_left: int) -> None:
        """Add the metrics of a step, which the device may not have computed yet."""
        interval = self._open
        interval.step, interval.steps_left = step, steps_left
        interval.totals[task], interval.bad, self._skipped = _accumulate(
            interval.totals.get(task), interval.bad, self._skipped, metrics, np.int32(step)
        )
        self._queued.append(interval.bad)
        if len(self._queued) > _STEPS_IN_FLIGHT:
            jax.block_until_ready(self._queued.popleft())
            self._publish(up_to=step - _STEPS_IN_FLIGHT)
        if task in self._compiled:
            interval.costs.append(self._cost[task])
        else:  # this step included compilation: measure time from its end
            self._publish()
            self._compiled.add(task)
            interval.costs.clear()
            jax.block_until_ready(interval.bad)
            self._since = time.perf_counter()
        if step % self._every == 0:
            self._closed.append(interval)
            self._open = _Interval()

    def require_finite(self, state: TrainState) -> None:
        """Wait for the device; raise `NonFiniteError` if a metric or parameter is not finite."""
        self._publish()
        self._writer.flush()  # a run that resumes from this state does not log these steps again
        if self._open.totals and (step := int(self._open.bad)):
            _stop(self._open.values(), step=step)
        if not np.isfinite(norm := float(_global_norm(state.params))):
            _stop({"param_norm": norm}, step=int(state.step))

    def evaluate(
        self, evaluate: Callable[[TrainState], Mapping[str, Any]], state: TrainState
    ) -> Mapping[str, Any]:
        """Publish the metrics of an evaluation, and return them."""
        self._publish()
        jax.block_until_ready(state.step)
        start = time.perf_counter()
        values = evaluate(state)
        self._write(int(state.step), values)
        self._writer.flush()
        if self._since is not None:
            self._since += time.perf_counter() - start
        return values

    def finish(self) -> None:
        """Publish the steps since the last log."""
        if self._open.totals:
            self._closed.append(self._open)
            self._open = _Interval()
        self._publish()
        self._writer.flush()

    def _publish(self, *, up_to: float = math.inf) -> None:
        """Publish the closed intervals that end by step `up_to`; waits for the device."""
        while self._closed and self._closed[0].step <= up_to:
            self._publish_one(self._closed.popleft())

    def _publish_one(self, interval: "_Interval") -> None:
        values = interval.values()
        now = time.perf_counter()
        if interval.costs and self._since is not None:
            values |= _rates(interval, seconds=now - self._since)
        self._since = now
        self._write(interval.step, {f"train/{name}": value for name, value in values.items()})
        for hook in self._hooks:
            hook(interval.step, values)
        if step := int(interval.bad):
            _stop(values, step=step)

    def _write(self, step: int, values: Mapping[str, Any]) -> None:
        numbers, tables = metrics_lib.split(values)
        self._writer.write_scalars(step, numbers)
        if tables:
            images = {name: table[None, :, :, None] for name, table in tables.items()}
            self._writer.write_images(step, images)


@dataclasses.dataclass
class _Interval:
    """The steps between two logs.

    Attributes:
        step: the last step so far.
        steps_left: steps of the run after it.
        totals: {task: sums of the metrics}.
        bad: the first step that is not finite; 0 if all are finite.
        costs: the cost of each step whose time counts.
    """

    step: int = 0
    steps_left: int = 0
    totals: dict[str, Metrics] = dataclasses.field(default_factory=dict)
    bad: Int[Array, ""] | int = 0
    costs: list[StepCost] = dataclasses.field(default_factory=list)

    def values(self) -> dict[str, Any]:
        """Return the metrics, named `<task>/<name>` in a run of several tasks."""
        return metrics_lib.compute(
            {
                f"{task}/{name}" if task else name: metric
                for task, metrics in self.totals.items()
                for name, metric in metrics.items()
            }
        )


def _rates(interval: _Interval, *, seconds: float) -> dict[str, float]:
    costs = interval.costs
    known = all(step.flops is not None for step in costs)
    return metrics_lib.throughput(
        steps=len(costs),
        seconds=seconds,
        steps_left=interval.steps_left,
        tokens_per_step=statistics.fmean(step.tokens for step in costs),
        examples_per_step=statistics.fmean(step.examples for step in costs),
        flops_per_step=statistics.fmean(step.flops or 0.0 for step in costs) if known else None,
        peak_flops=costs[0].peak_flops,
    )


@jax.jit
def _accumulate(
    total: Metrics | None,
    bad: Int[Array, ""],
    skipped: Int[Array, ""],
    metrics: Metrics,
    step: Int[Array, ""],
) -> tuple[Metrics, Int[Array, ""], Int[Array, ""]]:
    """Add the metrics of a step, and keep the first step whose loss or gradient is not finite.

    A skipped step counts as not finite only if `_MOST_SKIPPED` steps in a row were skipped.
    """
    watched = [metrics[name].total for name in ("loss", "grad_norm") if name in metrics]
    finite = jnp.all(jnp.isfinite(jnp.stack(watched)))
    if SKIPPED in metrics:
        skipped = jnp.where(metrics[SKIPPED].total > 0, skipped + 1, 0)
        finite &= skipped < _MOST_SKIPPED
    bad = jnp.where((bad == 0) & ~finite, step, bad)
    return metrics if total is None else metrics_lib.merge([total, metrics]), bad, skipped


def _stop(values: Mapping[str, float], *, step: int) -> None:
    problem = f"{_MOST_SKIPPED} steps in a row were skipped up to step {step}."
    try:
        metrics_lib.require_finite(values, step=step)
    except FloatingPointError as error:
        problem = str(error)
    raise NonFiniteError(f"{problem} The newest checkpoint is from before.", step=step)


def _read(batches: Batches, put: Callable[[Any], Any]) -> tuple[str, Any] | None:
    """Return the next task and its batch as global arrays; None at the end of the data."""
    try:
        task, batch = next(batches)
    except StopIteration:
        return None
    return task, put(batch)
