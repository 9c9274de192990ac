"""Stops a run at the same step on all processes when a signal comes."""

import collections
import contextlib
import functools
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array


class _Cut(BaseException):
    """Raised by a signal within work that may be cut short."""


class StopSignal:
    """Turns SIGTERM and Ctrl-C into a decision, the same on all processes: stop after this step.

    A second Ctrl-C kills the process, which leaves the checkpoints whole.
    """

    _SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, *, delay: int) -> None:
        self.has_cut = False
        self._delay = delay
        self._received = False
        self._may_cut = False
        self._handlers: dict[signal.Signals, Any] = {}
        self._votes: collections.deque[Array] = collections.deque()

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            for number in self._SIGNALS:
                self._handlers[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            # None is a handler that was not set from Python, and cannot be set again from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        self._received = True  # no logging here: a handler may interrupt a write to the terminal
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        if self._may_cut:
            raise _Cut

    @contextlib.contextmanager
    def cutting_short(self) -> Iterator[None]:
        """End the work within when a signal comes, unless other processes would wait for it."""
        try:
            self._may_cut = jax.process_count() == 1
            yield
            self._may_cut = False
        except _Cut:
            self._may_cut, self.has_cut = False, True

    def agreed(self) -> bool:
        """Whether to stop; all processes call it after each step, and get the same result.

        With several processes the result is from `delay` steps ago, which the devices have
        computed by now. The result of this step would make them wait for the host.
        """
        stop = self._received
        if jax.process_count() > 1:
            each, same = _process_shardings()
            flags = np.full(jax.local_device_count(), self._received)
            votes = jax.make_array_from_process_local_data(each, flags)
            self._votes.append(jax.jit(jnp.any, out_shardings=same)(votes))
            stop = len(self._votes) > self._delay and bool(self._votes.popleft())
        if stop:
            logging.warning("received a signal: saving, then stopping")
        return stop


@functools.cache
def _process_shardings() -> tuple[NamedSharding, NamedSharding]:
    """One entry for each device, in order of the processes; and the same value on all."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    mesh = Mesh(np.array(devices), ("devices",))
    return NamedSharding(mesh, P("devices")), NamedSharding(mesh, P())
