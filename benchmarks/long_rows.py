"""Compare time and memory of sparse and dense attention on rows of 1k to 16k tokens.

    python -m benchmarks.long_rows                    BigBird's attention
    python -m benchmarks.long_rows --system=gpt3      the patterns of the Sparse Transformer
    python -m benchmarks.long_rows --lengths=1024,2048 --repeats=3

One row, with the gradient of all parameters: one layer of BigBird's `base` (Zaheer et al. 2020,
table 8), or two of GPT-3's `small`, whose patterns alternate between two layers. The kinds of
attention take turns in one process; times are medians. Memory is XLA's temporaries of the compiled
program, which is not run if they exceed `--most` GB. The slopes are fitted to the logarithms from
2k tokens on: 1 is linear in the length, 2 quadratic.
"""

import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like import systems
from t5x_like.experiment.command_line import ArgumentParser, count
from t5x_like.systems import bigbird, gpt3

# {system: {kind of attention: settings}}
KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "bigbird": {
        "BigBird": {"attention_parts": "window|random|global"},
        "dense": {"attention_parts": "all"},
    },
    "gpt3": {
        "strided": {"pattern": "strided"},
        "fixed": {"pattern": "fixed"},
        "banded": {"pattern": "banded"},
        "dense": {"pattern": "banded", "window": 2**20},
    },
}
_SHARED: dict[str, dict[str, Any]] = {
    "bigbird": {**bigbird.SIZES["base"], "layers": 1, "head": "features"},
    "gpt3": {**gpt3.SIZES["small"], "layers": 2},
}
_FROM = 2048  # minimum tokens for the slopes


@dataclasses.dataclass(frozen=True)
class Program:
    """The gradient of the layers, compiled for rows of some length.

    Attributes:
        run: computes the gradient.
        memory: bytes of its temporaries.
    """

    run: Callable[[], object]
    memory: int


def main(arguments: Sequence[str]) -> None:
    """Print the table and the slopes."""
    parser = ArgumentParser(__doc__, prog="python -m benchmarks.long_rows")
    parser.add_argument("--system", choices=list(KINDS), default="bigbird")
    parser.add_argument("--lengths", default="1024,2048,4096,8192,16384")
    parser.add_argument("--repeats", type=count, default=5)
    parser.add_argument("--most", type=count, default=12)
    options = parser.parse_args(arguments)
    print(f"load {os.getloadavg()[0]:.1f}")
    kinds = KINDS[options.system]
    print(f"{'tokens':>7}" + "".join(f"{kind:>12} s{'GB':>8}" for kind in kinds))
    seconds: dict[str, dict[int, float]] = {kind: {} for kind in kinds}
    memory: dict[str, dict[int, float]] = {kind: {} for kind in kinds}
    for length in map(int, options.lengths.split(",")):
        programs = {
            kind: compiled(options.system, changes, length) for kind, changes in kinds.items()
        }
        fits = {kind: one for kind, one in programs.items() if one.memory <= options.most * 1e9}
        times = in_turns(fits, repeats=options.repeats)
        line = f"{length:>7,}"
        for kind, one in programs.items():
            memory[kind][length] = one.memory / 1e9
            if kind in times:
                seconds[kind][length] = times[kind]
            measured = f"{times[kind]:.3f}" if kind in times else "not run"
            line += f"{measured:>14}{one.memory / 1e9:>8.2f}"
        print(line)
    for kind in kinds:
        print(
            f"{kind}: slope of the time {slope(seconds[kind])}, of the memory {slope(memory[kind])}"
        )


def compiled(system: str, changes: Mapping[str, Any], length: int) -> Program:
    """Compile the gradient of the layers with a kind of attention on a row of random tokens.

    Args:
        system: "bigbird" or "gpt3".
        changes: the settings of the kind of attention.
        length: tokens of the row.
    """
    settings = _SHARED[system] | {
        "positions": length,
        "vocab_size": 1024,
        "dropout": 0.0,
        "loop": "unroll",
        **changes,
    }
    network = systems.build(system, settings)
    tokens = np.random.default_rng(0).integers(1, 1024, (1, length), np.int32)
    side = network.sides[-1]
    batch = {f"{side}_input_tokens": tokens, f"{side}_segment_ids": np.ones_like(tokens)}
    params = jax.jit(network.init)(jax.random.key(0), network.example_batch())["params"]

    def loss(params: object) -> jax.Array:
        output = network.apply({"params": params}, batch)
        return jnp.mean(jnp.square(output if system == "gpt3" else output["hidden"]))

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
    main(sys.argv[1:])
