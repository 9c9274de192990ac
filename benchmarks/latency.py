"""Latency of encoders on this CPU: BERT base beside the small models that replace it.

    python -m benchmarks.latency [--rows 1 8] [--length 128] [--repeats 20] [--json FILE]

Each network has its published size and random weights, and encodes rows of tokens without padding
in float32, without a head: in this process, compiled by JAX, and as the StableHLO program that
`convert --format=stablehlo` writes, which JAX compiles without this package's modules. The networks
take turns; figures are medians of the repeats, with the least and the greatest, and how many times
as fast a network is as the first network in the same program.

A measurement starts when the load of the machine is below 1. Nothing else may run meanwhile.
"""

import dataclasses
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax import export
from safetensors.flax import load_file

from benchmarks.beside_pytorch import wait_until_quiet
from t5x_like import systems
from t5x_like.experiment import command_line
from t5x_like.pretrained import PretrainedEncoder, stablehlo

NETWORKS = {
    "BERT base": ("bert", "base"),
    "DistilBERT": ("distilbert", "base"),
    "TinyBERT, 6 layers": ("tinybert", "6l"),
    "TinyBERT, 4 layers": ("tinybert", "4l"),
    "ALBERT base": ("albert", "base"),
    "ELECTRA small": ("electra", "small"),
}
WARM_UP = 2
# The fields of a batch, by the names of a program's inputs.
OURS = {
    "input_ids": "input_tokens",
    "attention_mask": "segment_ids",
    "token_type_ids": "token_types",
}


@dataclasses.dataclass(frozen=True)
class Latency:
    """The times of a network.

    Attributes:
        network: a name in NETWORKS.
        program: "jax" or "stablehlo".
        rows, length: the shape of the tokens.
        parameters: their number.
        seconds: of each repeat.
    """

    network: str
    program: str
    rows: int
    length: int
    parameters: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the seconds."""
        return statistics.median(self.seconds)


def build(name: str) -> PretrainedEncoder:
    """Return a network of NETWORKS with random weights, without a head."""
    system, size = NETWORKS[name]
    config = systems.find(system).sizes[size] | {"head": "features"}
    module = systems.build(system, config)
    initialize = jax.jit(module.init)
    params = nn.unbox(initialize(jax.random.key(0), module.example_batch()))["params"]
    return PretrainedEncoder(module, params, system=system, config=dict(config))


def programs(
    model: PretrainedEncoder, tokens: np.ndarray, folder: pathlib.Path
) -> dict[str, Callable[[], Any]]:
    """Return {program: a function that encodes the tokens}."""
    inputs = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
    if model.config.get("token_types"):
        inputs["token_type_ids"] = np.zeros_like(tokens)
    batch = {f"encoder_{OURS[name]}": array for name, array in inputs.items()}
    forward = jax.jit(lambda params, batch: model.module.apply({"params": params}, batch))
    rows, length = tokens.shape
    stablehlo.save(model, folder, sizes={"batch": rows, "length": length})
    exported = export.deserialize((folder / "forward.stablehlo").read_bytes())
    call, params = jax.jit(exported.call), load_file(folder / "model.safetensors")
    return {
        "jax": lambda: jax.block_until_ready(forward(model.params, batch)),
        "stablehlo": lambda: jax.block_until_ready(call(params, inputs)),
    }


def measure(
    names: Sequence[str], *, rows: int, length: int, repeats: int, folder: pathlib.Path
) -> list[Latency]:
    """Return the latency of each program of each network, in the order of `names`."""
    tokens = np.random.default_rng(0).integers(1000, 20_000, (rows, length), np.int32)
    calls, parameters = {}, {}
    for name in names:
        model = build(name)
        parameters[name] = sum(x.size for x in jax.tree.leaves(model.params))
        for program, call in programs(model, tokens, folder / f"{name} {rows}").items():
            calls[name, program] = call
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for number in range(WARM_UP + repeats):
        for key, call in calls.items():
            start = time.perf_counter()
            call()
            if number >= WARM_UP:
                seconds[key].append(time.perf_counter() - start)
    return [
        Latency(name, program, rows, length, parameters[name], tuple(times))
        for (name, program), times in seconds.items()
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each network, program and number of rows."""
    parser = command_line.ArgumentParser(__doc__, prog="python -m benchmarks.latency")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--rows", type=command_line.count, nargs="+", default=[1, 8])
    parser.add_argument("--length", type=command_line.count, default=128)
    parser.add_argument("--repeats", type=command_line.count, default=20)
    parser.add_argument("--json", metavar="FILE", help="JSON file for the figures")
    given = parser.parse_args(arguments)
    if given.json:
        command_line.check_file("--json", given.json)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for rows in given.rows:
            load = wait_until_quiet()
            shape = {"rows": rows, "length": given.length, "repeats": given.repeats}
            made = measure(given.networks, folder=pathlib.Path(folder), **shape)
            print(f"{rows} x {given.length} tokens (load {load:.2f} before)", flush=True)
            print("\n".join(lines(made)), flush=True)
            found += [dataclasses.asdict(one) for one in made]
    if given.json:
        command_line.write_json(given.json, found)


def lines(made: Sequence[Latency]) -> list[str]:
    """Return a line for each network and program, in the order of `measure`."""
    first = {one.program: one.median for one in reversed(made)}
    return [_line(one, first[one.program]) for one in made]


def _line(one: Latency, first: float) -> str:
    low, high = min(one.seconds) * 1e3, max(one.seconds) * 1e3
    return (
        f"  {one.network:18} {one.program:9} {one.parameters / 1e6:6.1f} M parameters "
        f"{one.median * 1e3:7.1f} ms ({low:.1f} to {high:.1f}), "
        f"{first / one.median:.2f} times as fast"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
