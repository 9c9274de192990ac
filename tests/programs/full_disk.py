"""Saves checkpoints in a folder until its disk is full, as a command does: one line, status 2."""

import pathlib
import sys

import jax.numpy as jnp

from t5x_like.checkpoints import Checkpoints
from t5x_like.config import one_line_errors
from tests.saved_states import make_state

STEPS = 20


def main(folder: str) -> None:
    """Save a state of 256 kB more at each step, and keep all."""
    params = {f"table_{n}": n + jnp.arange(1 << 13, dtype=jnp.float32) for n in range(8)}
    state = make_state().replace(params=params)
    with one_line_errors(), Checkpoints(pathlib.Path(folder), every=1, keep=STEPS) as saver:
        for step in range(STEPS):
            saver.save(step, state)


if __name__ == "__main__":
    main(sys.argv[1])
