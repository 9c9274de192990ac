"""Compare time and memory of BigBird's and dense attention on rows of 1k to 16k tokens.

    python -m benchmarks.long_rows
    python -m benchmarks.long_rows --lengths=1024,2048 --repeats=3

One row, one layer of `base` (Zaheer et al. 2020, table 8), with the gradient of all parameters. The
two kinds of attention take turns in one process; times are medians. Memory is XLA's temporaries of
the compiled program, which is not run if they exceed `--most` GB. The slopes are fitted to the
logarithms from 2k tokens on: 1 is linear in the length, 2 quadratic.
"""

if __name__ == "__main__":
    # Before the imports below, which take seconds: help and errors are quick.
    from t5x_like.experiment.command_line import ArgumentParser, count

    PARSER = ArgumentParser(__doc__, prog="python -m benchmarks.long_rows")
    PARSER.add_argument("--lengths", default="1024,2048,4096,8192,16384")
    PARSER.add_argument("--repeats", type=count, default=5)
    PARSER.add_argument("--most", type=count, default=12)
    ARGUMENTS = PARSER.parse_args()

import argparse
import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like import systems
from t5x_like.systems import bigbird

KINDS = {"BigBird": "window|random|global", "dense": "all"}
_FROM = 2048  # minimum tokens for the slopes


@dataclasses.dataclass(frozen=True)
class Program:
    """The gradient of one layer, compiled for rows of some length.

    Attributes:
        run: computes the gradient.
        memory: bytes of its temporaries.
    """

    run: Callable[[], object]
    memory: int


def main(arguments: argparse.Namespace) -> None:
    """Print the table and the slopes."""
    print(f"load {os.getloadavg()[0]:.1f}")
    print(f"{'tokens':>7}" + "".join(f"{kind:>12} s{'GB':>8}" for kind in KINDS))
    seconds: dict[str, dict[int, float]] = {kind: {} for kind in KINDS}
    memory: dict[str, dict[int, float]] = {kind: {} for kind in KINDS}
    for length in map(int, arguments.lengths.split(",")):
        programs = {kind: compiled(parts, length) for kind, parts in KINDS.items()}
        fits = {kind: one for kind, one in programs.items() if one.memory <= arguments.most * 1e9}
        times = in_turns(fits, repeats=arguments.repeats)
        line = f"{length:>7,}"
        for kind, one in programs.items():
            memory[kind][length] = one.memory / 1e9
            if kind in times:
                seconds[kind][length] = times[kind]
            measured = f"{times[kind]:.3f}" if kind in times else "not run"
            line += f"{measured:>14}{one.memory / 1e9:>8.2f}"
        print(line)
    for kind in KINDS:
        print(
            f"{kind}: slope of the time {slope(seconds[kind])}, of the memory {slope(memory[kind])}"
        )


def compiled(parts: str, length: int) -> Program:
    """Compile the gradient of one layer with some `attention_parts` on a row of random tokens."""
    settings = bigbird.SIZES["base"] | {
        "attention_parts": parts,
        "layers": 1,
        "positions": length,
        "vocab_size": 1024,
        "dropout": 0.0,
        "loop": "unroll",
        "head": "features",
    }
    network = systems.build("bigbird", settings)
    tokens = np.random.default_rng(0).integers(1, 1024, (1, length), np.int32)
    batch = {"encoder_input_tokens": tokens, "encoder_segment_ids": np.ones_like(tokens)}
    params = jax.jit(network.init)(jax.random.key(0), network.example_batch())["params"]

    def loss(params: object) -> jax.Array:
        return jnp.mean(jnp.square(network.apply({"params": params}, batch)["hidden"]))

    program = jax.jit(jax.grad(loss)).lower(params).compile()
    analysis = program.memory_analysis()
    assert analysis is not None
    return Program(lambda: jax.block_until_ready(program(params)), analysis.temp_size_in_bytes)


def in_turns(programs: dict[str, Program], *, repeats: int) -> dict[str, float]:
    """Return the median seconds of each program, after a first untimed run."""
    seconds: dict[str, list[float]] = {kind: [] for kind in programs}
    for _ in range(repeats + 1):
        for kind, program in programs.items():
            start = time.perf_counter()
            program.run()
            seconds[kind].append(time.perf_counter() - start)
    return {kind: statistics.median(found[1:]) for kind, found in seconds.items()}


def slope(values: dict[int, float]) -> str:
    """Return the slope of log(value) over log(length) from 2k tokens on, or "unknown"."""
    lengths: Sequence[int] = [length for length in values if length >= _FROM]
    if len(lengths) < 2:
        return "unknown"
    [found, _] = np.polyfit(np.log(lengths), np.log([values[n] for n in lengths]), 1)
    return f"{found:.2f}"


if __name__ == "__main__":
    main(ARGUMENTS)
