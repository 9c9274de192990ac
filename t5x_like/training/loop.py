"""The training loop: keeps the device busy, and logs, evaluates, saves and stops at the right step.

The host runs ahead of the device: while a step computes, the next batch is drawn and its step is
queued. Metrics add up on the device, and are fetched a step after the one they are logged for.
"""

import collections
import contextlib
import dataclasses
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import logging
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int

from t5x_like.training import metrics as metrics_lib
from t5x_like.training.metrics import Metrics
from t5x_like.training.state import TrainState

# Steps queued on the device: enough that it never waits, few enough to stop within seconds.
_AHEAD = 2

_global_norm = jax.jit(optax.tree.norm)


class Writer(Protocol):
    """What the loop needs of a `clu.metric_writers.MetricWriter`."""

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Stores the metrics of a step."""

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Stores pictures [1, height, width, 1] of a step."""

    def flush(self) -> None:
        """Brings to disk what was stored."""


class Saver(Protocol):
    """What the loop needs of `t5x_like.checkpoints.Checkpoints`."""

    def due(self, step: int) -> bool:
        """Whether to save at this step."""

    def save(self, step: int, state: Any, data_state: Mapping[int, bytes] | None) -> None:
        """Takes a copy of the state, to write it in the background."""

    def wait(self) -> None:
        """Blocks until it is written."""


@dataclasses.dataclass(frozen=True)
class Work:
    """What one step does on all devices together, to turn seconds into rates.

    `flops` are model FLOPs (`flops.training`), `peak_flops` FLOP/s; None where unknown.
    """

    tokens: float
    examples: float
    flops: float | None = None
    peak_flops: float | None = None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Where a run got to, and whether a signal ended it, perhaps at its last step."""

    state: TrainState
    interrupted: bool


def fit(
    state: TrainState,
    *,
    train_step: Callable[[TrainState, Any], tuple[TrainState, Metrics]],
    batches: Iterator[Any],
    put: Callable[[Any], Any],
    steps: int,
    log: "Log",
    checkpoints: Saver | None = None,
    evaluate: Callable[[TrainState], Mapping[str, Any]] | None = None,
    evaluate_every: int = 0,
) -> Outcome:
    """Trains from `state.step` to `steps`, or to the end of the data; call it on all processes.

    SIGTERM or Ctrl-C ends the run after the step at hand and saves it; a second Ctrl-C kills it.

    Args:
        state: where to start; gone afterwards if `train_step` donates it.
        train_step: jitted, as `make_train_step` makes it.
        batches: this process's part of each batch. It stands where `state` does, has `state()` if
            its position is to be saved, and ends on all processes at once.
        put: makes global arrays of this process's part of a batch.
        steps: the last step.
        log: where the metrics go, and when.
        checkpoints: saves at steps of its own choice and at the last.
        evaluate: metrics of a state, as `metrics.compute` returns them, asked for every
            `evaluate_every` steps and, unless a signal came, at the end.
        evaluate_every: 0 for at the end only.

    Raises:
        FloatingPointError: a loss, gradient or parameter is not finite. The message names the step,
            and the newest checkpoint is from before it.
    """
    step, interrupted = int(state.step), False
    with _StopSignal() as stop:
        batch = _draw(batches, put) if step < steps else None
        while batch is not None:
            state, metrics = train_step(state, batch)
            step += 1
            log.add(metrics, step=step, steps_left=steps - step)
            interrupted = stop.agreed()
            last = interrupted or step == steps
            due = last or (checkpoints is not None and checkpoints.due(step))
            position = _position(batches) if due else None  # that of the step, not of the next one
            batch = None if last else _draw(batches, put)
            if batch is None and not due:  # the data has ended
                due, position = True, _position(batches)
            if checkpoints is not None and due:
                log.require_finite(state)
                checkpoints.save(step, state, position)
            at_evaluation = evaluate_every and step % evaluate_every == 0
            if evaluate is not None and not interrupted and (batch is None or at_evaluation):
                with stop.cutting_short():
                    log.evaluate(evaluate, state)
        if step < steps and not interrupted:
            logging.warning("the data ended at step %d of %d", step, steps)
        log.finish()
        if checkpoints is not None:
            checkpoints.wait()
    return Outcome(state, interrupted or stop.has_cut)


class Log:
    """Publishes the metrics of a run: means over the steps between two logs, rates, time left.

    Args:
        writer: gets them as `train/<name>`, and those of evaluations by their own names; those that
            are arrays as pictures of a pixel for each value.
        every: steps from one log to the next; the last step is logged too.
        work: for tokens/s, examples/s and utilization. Compiling and evaluating do not count.
        hooks: called with the step and the metrics of each log, to show a progress line, say.
    """

    def __init__(
        self,
        writer: Writer,
        *,
        every: int,
        work: Work,
        hooks: Sequence[Callable[[int, Mapping[str, Any]], None]] = (),
    ):
        if every < 1:
            raise ValueError(f"train.log_every={every}: must be 1 or more")
        self._writer, self._every, self._work, self._hooks = writer, every, work, hooks
        self._open = _Interval()
        self._closed: _Interval | None = None  # to be published when the device has computed it
        self._queued: collections.deque[Any] = collections.deque()
        self._since: float | None = None

    def add(self, metrics: Metrics, *, step: int, steps_left: int) -> None:
        """Takes a step's metrics, which the device may not have computed yet."""
        self._publish_closed()
        interval = self._open
        interval.step, interval.steps_left = step, steps_left
        interval.total, interval.bad = _accumulate(
            interval.total, interval.bad, metrics, np.int32(step)
        )
        self._queued.append(interval.bad)
        if len(self._queued) > _AHEAD:
            jax.block_until_ready(self._queued.popleft())
        if self._since is None:  # this step was compiled too: time counts from its end
            jax.block_until_ready(interval.bad)
            self._since = time.perf_counter()
        else:
            interval.timed_steps += 1
        if step % self._every == 0:
            self._closed, self._open = interval, _Interval()

    def require_finite(self, state: TrainState) -> None:
        """Waits for the device, and raises FloatingPointError if anything so far is not finite."""
        self._publish_closed()
        if self._open.total is not None and (step := int(self._open.bad)):
            _stop(metrics_lib.compute(self._open.total), step=step)
        norm = float(_global_norm(state.params))
        if not np.isfinite(norm):
            _stop({"param_norm": norm}, step=int(state.step))

    def evaluate(
        self, evaluate: Callable[[TrainState], Mapping[str, Any]], state: TrainState
    ) -> None:
        """Publishes what an evaluation gives."""
        self._publish_closed()
        jax.block_until_ready(state.step)
        start = time.perf_counter()
        self._write(int(state.step), evaluate(state))
        self._writer.flush()
        if self._since is not None:
            self._since += time.perf_counter() - start

    def finish(self) -> None:
        """Publishes the steps since the last log."""
        self._publish_closed()
        if self._open.total is not None:
            self._closed, self._open = self._open, _Interval()
            self._publish_closed()
        self._writer.flush()

    def _publish_closed(self) -> None:
        if self._closed is None:
            return
        interval, self._closed = self._closed, None
        assert interval.total is not None
        values = metrics_lib.compute(interval.total)  # waits for the device
        now = time.perf_counter()
        if interval.timed_steps and self._since is not None:
            values |= metrics_lib.throughput(
                steps=interval.timed_steps,
                seconds=now - self._since,
                steps_left=interval.steps_left,
                tokens_per_step=self._work.tokens,
                examples_per_step=self._work.examples,
                flops_per_step=self._work.flops,
                peak_flops=self._work.peak_flops,
            )
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
    """The steps between two logs."""

    step: int = 0
    steps_left: int = 0
    timed_steps: int = 0
    total: Metrics | None = None
    bad: Int[Array, ""] | int = 0  # the first step that is not finite, 0 for none


@jax.jit
def _accumulate(
    total: Metrics | None, bad: Int[Array, ""], metrics: Metrics, step: Int[Array, ""]
) -> tuple[Metrics, Int[Array, ""]]:
    """Adds the metrics of a step, and keeps the first step whose loss or gradient is not finite."""
    watched = [metrics[name].total for name in ("loss", "grad_norm") if name in metrics]
    finite = jnp.all(jnp.isfinite(jnp.stack(watched)))
    bad = jnp.where((bad == 0) & ~finite, step, bad)
    return metrics if total is None else metrics_lib.merge([total, metrics]), bad


def _stop(values: Mapping[str, float], *, step: int) -> None:
    try:
        metrics_lib.require_finite(values, step=step)
    except FloatingPointError as error:
        raise FloatingPointError(f"{error} The newest checkpoint is from before.") from None


def _draw(batches: Iterator[Any], put: Callable[[Any], Any]) -> Any:
    batch = next(batches, None)
    return None if batch is None else put(batch)


def _position(batches: Iterator[Any]) -> Mapping[int, bytes] | None:
    return batches.state() if hasattr(batches, "state") else None


class _Cut(BaseException):
    """Raised by a signal in what can be left undone."""


class _StopSignal:
    """Turns SIGTERM and Ctrl-C into an answer, the same on all processes: to stop after this step.

    A second Ctrl-C kills the process, which leaves the checkpoints whole.
    """

    _SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.has_cut = False
        self._received = False
        self._may_cut = False
        self._handlers: dict[signal.Signals, Any] = {}
        self._votes: collections.deque[Array] = collections.deque()

    def __enter__(self) -> "_StopSignal":
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            for number in self._SIGNALS:
                self._handlers[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            # None is a handler that was not set from Python, and cannot be set again from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        self._received = True  # and no word of it: a handler may interrupt a write to the terminal
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        if self._may_cut:
            raise _Cut

    @contextlib.contextmanager
    def cutting_short(self) -> Iterator[None]:
        """What is within ends when a signal comes, unless other processes would wait for it."""
        try:
            self._may_cut = jax.process_count() == 1
            yield
            self._may_cut = False
        except _Cut:
            self._may_cut, self.has_cut = False, True

    def agreed(self) -> bool:
        """Whether to stop. All processes ask after each step, and hear the same.

        Over several processes the answer is that of `_AHEAD` steps ago, which the devices have
        computed by now: to ask for this step's would make them wait for the host.
        """
        stop = self._received
        if jax.process_count() > 1:
            each, same = _process_shardings()
            flags = np.full(jax.local_device_count(), self._received)
            votes = jax.make_array_from_process_local_data(each, flags)
            self._votes.append(jax.jit(jnp.any, out_shardings=same)(votes))
            stop = len(self._votes) > _AHEAD and bool(self._votes.popleft())
        if stop:
            logging.warning("a signal came: saving, then stopping")
        return stop


@functools.cache
def _process_shardings() -> tuple[NamedSharding, NamedSharding]:
    """One entry for each device, in order of the processes; and the same value on all."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    mesh = Mesh(np.array(devices), ("devices",))
    return NamedSharding(mesh, P("devices")), NamedSharding(mesh, P())
