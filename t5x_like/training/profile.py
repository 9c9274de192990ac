"""A profile of a few training steps, for TensorBoard and XProf."""

import pathlib
from typing import Any

import jax
from absl import logging


class Profile:
    """Writes a trace of the devices and the host over some steps.

    Args:
        first: the first traced step; 0 for no profile. The first step of a run includes
            compilation.
        steps: the number of traced steps.
        folder: each process writes its trace to `plugins/profile/<time>/` in this folder.
    """

    def __init__(self, first: int = 0, steps: int = 1, folder: pathlib.Path | str = ""):
        self._first, self._last = first, first + steps - 1
        self._folder, self._runs = folder, False

    def before(self, step: int) -> None:
        """Start the trace if `step`, which is about to be queued, is the first traced step."""
        if step == self._first:
            jax.profiler.start_trace(self._folder)
            self._runs = True

    def after(self, step: int, outputs: Any) -> None:
        """End the trace if `step` is the last traced step, once its `outputs` are computed."""
        if self._runs and step == self._last:
            jax.block_until_ready(outputs)
            self.close()

    def close(self) -> None:
        """End the trace if it is still running."""
        if self._runs:
            jax.profiler.stop_trace()
            self._runs = False
            logging.info("a profile from step %d on is in %s", self._first, self._folder)
