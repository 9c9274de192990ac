"""Measure the host's work during training: CPU time of the loop and of reading batches.

    python -m benchmarks.host_work                                   a fixed batch
    python -m benchmarks.host_work --vocabulary=vocabulary.model     batches of the data pipeline

The state has the arrays of `configs/t5.py:small` at a width of 8, and the step only increments a
counter, so that the host's work remains. Measured are the CPU time of the thread that runs the
loop, and of the whole process, including the thread that reads, lays out and puts the batches,
TensorFlow's threads and the step itself. Medians of `--repeats` runs. Run it on quiet cores.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.train_step import load_config, random_batch
from t5x_like import vocabularies
from t5x_like.config import one_line_errors
from t5x_like.experiment import model_side
from t5x_like.experiment.command_line import ArgumentParser, count
from t5x_like.experiment.model_side import TaskProgram
from t5x_like.experiment.run import of_config
from t5x_like.preprocessing import seqio_objectives, sources
from t5x_like.preprocessing.pipeline import SeqioBatches
from t5x_like.training import metrics
from t5x_like.training.loop import Log, StepCost, fit

NARROW = {"d_model": 8, "d_ff": 8, "heads": 1, "d_kv": 8, "kv_heads": 1}


class NoWriter:
    """A metrics writer that discards everything."""

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Discard scalars."""

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Discard images."""

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""


class Fed:
    """Batches for the loop, without a position."""

    def __init__(self, batches: Iterator[Any]):
        self._batches = batches

    def __next__(self) -> tuple[str, Any]:
        """Return the next batch of the only task."""
        return "", next(self._batches)

    def state(self) -> None:
        """Return no position."""


def main() -> None:
    """Print the CPU time of a step, by thread."""
    parser = ArgumentParser(__doc__, prog="python -m benchmarks.host_work")
    parser.add_argument("--vocabulary", default="", help="read pydocs with it")
    for name, default in {"batch": 32, "steps": 300, "repeats": 5, "log_every": 50}.items():
        parser.add_argument(f"--{name}", type=count, default=default)
    flags = parser.parse_args()
    with one_line_errors():
        config = load_config("configs/t5.py", "small")
        config.data.batch_size = flags.batch
        config.model.update({name: n for name, n in NARROW.items() if name in config.model})
        model = model_side.build(of_config(config))
        batches = (
            _read(config, flags) if flags.vocabulary else itertools.repeat(random_batch(config))
        )
    with model.layout():
        measured = [_measure(model, Fed(iter(batches)), flags) for _ in range(flags.repeats + 1)]
    for name in measured[0]:
        values = sorted(1e3 * one[name] for one in measured[1:])  # the first run compiles
        spread = f"{values[0]:.2f} to {values[-1]:.2f}"
        print(f"{name:18} {statistics.median(values):.2f} ms a step ({spread})")


def _read(config: Any, flags: argparse.Namespace) -> SeqioBatches:
    """Return the batches of the documentation corpus."""
    module = sources.load_module("data/pydocs.py")
    module.register(vocabularies.load(flags.vocabulary), seqio_objectives.build("span_corruption"))
    return SeqioBatches(
        "pydocs",
        split="train",
        batch_size=config.data.batch_size,
        lengths=config.data.lengths.to_dict(),
        shuffle_buffer=config.data.shuffle_buffer,
    )


def _measure(model: TaskProgram, batches: Fed, flags: argparse.Namespace) -> dict[str, float]:
    """Return the CPU seconds of a step."""
    state = model.initial_state()
    next(batches)  # fills the shuffle buffer
    step = jax.jit(_count, donate_argnums=0, keep_unused=True)
    log = Log(NoWriter(), every=flags.log_every, cost={"": StepCost(tokens=1, examples=1)})
    loop, process = time.thread_time(), time.process_time()
    fit(
        state,
        train_steps={"": step},
        batches=batches,
        put=model.put,
        steps=flags.steps,
        log=log,
    )
    return {
        "the loop": (time.thread_time() - loop) / flags.steps,
        "all threads": (time.process_time() - process) / flags.steps,
    }


def _count(state: Any, batch: Any) -> Any:
    """A step without a model, with the arguments and metrics of a training step."""
    size = jnp.float32(sum(rows.shape[0] for rows in batch.values()))
    names = ("loss", "cross_entropy", "z_loss", "accuracy")
    values = dict.fromkeys(("grad_norm", "param_norm", "learning_rate"), (size, 1.0))
    sums = {name: (jnp.zeros(()), size) for name in names} | values
    return state.replace(step=state.step + 1), metrics.from_sums(sums)


if __name__ == "__main__":
    main()
