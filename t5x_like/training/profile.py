"""A profile of a few training steps, for TensorBoard and XProf."""

import pathlib
from typing import Any

import jax
from absl import logging


class Profile:
    """Writes a trace of the devices and of the host over some steps.

    Args:
        first: the first of them; 0 for no profile. The first step of a run compiles.
        steps: their number.
        folder: where the trace of each process goes, in `plugins/profile/<time>/`.
    """

    def __init__(self, first: int = 0, steps: int = 1, folder: pathlib.Path | str = ""):
        self._first, self._last = first, first + steps - 1
        self._folder, self._runs = folder, False

    def before(self, step: int) -> None:
        """Begin with the first step, before it is queued."""
        if step == self._first:
            jax.profiler.start_trace(self._folder)
            self._runs = True

    def after(self, step: int, outputs: Any) -> None:
        """End with the last step, once the device has computed its outputs."""
        if self._runs and step == self._last:
            jax.block_until_ready(outputs)
            self.close()

    def close(self) -> None:
        """End a trace whose last step does not come."""
        if self._runs:
            jax.profiler.stop_trace()
            self._runs = False
            logging.info("a profile from step %d on is in %s", self._first, self._folder)
