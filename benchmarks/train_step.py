"""Measure speed and memory of a training step on random tokens, and its compile time.

    python -m benchmarks.train_step                      T5 v1.1 small, batch 4, 512 and 114 tokens
    python -m benchmarks.train_step --compile            compile times, scanned and looped

The step is compared with the machine's measured peak, a large matrix product timed before and after
it in the same run. Times are medians.
"""

import importlib.util
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from t5x_like.config import one_line_errors
from t5x_like.experiment import model_side
from t5x_like.experiment.command_line import ArgumentParser, count
from t5x_like.experiment.run import of_config
from t5x_like.training import flops

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: Sequence[str]) -> None:
    """Print the figures."""
    parser = ArgumentParser(__doc__, prog="python -m benchmarks.train_step")
    parser.add_argument("--size", default="small")
    parser.add_argument("--batch", type=count, default=4)
    parser.add_argument("--steps", type=count, default=10)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args(arguments)
    with one_line_errors():
        config = load_config("configs/t5.py", options.size)
    config.data.batch_size = options.batch
    if not options.compile:
        measure_steps(config, steps=options.steps)
        return
    for layers in (8, 48):
        for loop in ("scan", "unroll"):
            config.model.update({"encoder_layers": layers, "decoder_layers": layers, "loop": loop})
            start = time.perf_counter()
            compile_step(config)
            print(f"{layers} + {layers} layers, {loop}: {time.perf_counter() - start:.1f} s")


def load_config(path: str, size: str) -> ml_collections.ConfigDict:
    """Return the config of a file in configs/."""
    spec = importlib.util.spec_from_file_location("config", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(size)


def random_batch(config: ml_collections.ConfigDict) -> dict[str, np.ndarray]:
    """Return a batch of random tokens without padding."""
    draw = np.random.default_rng(0)
    rows, lengths = config.data.batch_size, config.data.lengths

    def tokens(length: int) -> np.ndarray:
        return draw.integers(1, config.model.vocab_size, (rows, length), np.int32)

    return {
        "encoder_input_tokens": tokens(lengths.inputs),
        "decoder_input_tokens": tokens(lengths.targets),
        "decoder_target_tokens": tokens(lengths.targets),
        "decoder_loss_weights": np.ones((rows, lengths.targets), np.float32),
    }


def compile_step(config: ml_collections.ConfigDict) -> Any:
    """Trace and compile a training step without running it."""
    model = model_side.build(of_config(config))
    with model.layout():
        return model.train_step.lower(
            model.abstract_state, model.put(random_batch(config))
        ).compile()


def measure_steps(config: ml_collections.ConfigDict, *, steps: int) -> None:
    """Time steps, and print them as tokens per second and as a fraction of the peak."""
    model = model_side.build(of_config(config))
    batch = random_batch(config)
    work = flops.training(lambda params: model.loss(params, batch, None), model.shapes.params)
    with model.layout():
        state, on_device = model.initial_state(), model.put(batch)
        before = matrix_product_peak()
        start = time.perf_counter()
        state, _ = jax.block_until_ready(model.train_step(state, on_device))
        compiling = time.perf_counter() - start
        seconds = []
        for _ in range(steps):
            start = time.perf_counter()
            state, _ = jax.block_until_ready(model.train_step(state, on_device))
            seconds.append(time.perf_counter() - start)
    step, peak = statistics.median(seconds), max(before, matrix_product_peak())
    tokens = batch["encoder_input_tokens"].size + batch["decoder_input_tokens"].size
    print(f"first step, compiled: {compiling:.1f} s")
    print(f"step: {step:.3f} s, {tokens / step:,.0f} tokens/s (inputs and targets)")
    print(f"model FLOPs: {work / 1e9:.0f} G a step, {work / step / 1e9:.1f} GFLOP/s")
    print(f"matrix products: {peak / 1e9:.0f} GFLOP/s; the step has {work / step / peak:.0%} of it")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"peak memory of the process: {memory / 1e9:.2f} GB")


def matrix_product_peak(size: int = 2048) -> float:
    """Return the FLOP/s of a float32 product of square matrices, the best of ten."""
    matrix = jnp.asarray(np.random.default_rng(0).standard_normal((size, size)), jnp.float32)
    product: Callable[[Any], Any] = jax.jit(lambda x: x @ x)
    product(matrix).block_until_ready()
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        product(matrix).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
