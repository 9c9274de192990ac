"""Compare training and generation with Hugging Face's networks in PyTorch: time ratios.

    pip install torch transformers      # only for this benchmark
    python -m benchmarks.beside_pytorch [--rows train_t5 t5_greedy] [--repeats 5] [--json FILE]
    python -m benchmarks.beside_pytorch --rows gpu_t5_greedy gpu_llama_1     # with a GPU
    python -m benchmarks.beside_pytorch --rows train_narrow --t5x FLAX SOURCE

Each side of a row runs in a separate process with the same weights and tokens, in float32 on a CPU
and in bfloat16 on a GPU, and the sides take turns: PyTorch eager and compiled; here with scanned
layers, and with `model.loop=auto`. Training is forward pass, backward pass, and AdamW (fused in
PyTorch) or Adafactor. The losses of the first step are printed, or the share of equal generated
tokens. Our processes use tcmalloc if it is installed, as the commands do; --preload preloads a
library in all processes.

A row starts when the load of the machine is below 1. Figures are medians, with the minimum and
maximum of the repeats; a ratio is PyTorch's eager time divided by the other side's, and CPU seconds
are summed over all threads of a process. Nothing else may run meanwhile: other work makes PyTorch's
threads wait for each other, which flatters this side.

--t5x adds the step of T5X's trainer to rows with Adafactor: FLAX is an environment as docs/plans.md
describes, SOURCE a clone of T5X. Its weights are random.
"""

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.beside_pytorch_rows import ROWS, Row
from benchmarks.beside_pytorch_side import MODULES
from t5x_like.experiment import command_line, startup
from t5x_like.experiment.command_line import ArgumentParser, count

ROOT = pathlib.Path(__file__).resolve().parents[1]
WARM_UP = 2
_QUIET = 1.0  # maximum load of a quiet machine
_T5X = "t5x"


@dataclasses.dataclass
class Side:
    """A process with one side of a row.

    Attributes:
        name: eager, compiled, t5x, scan or auto.
        times, cpu: seconds and CPU seconds of the measured calls.
        first: the result of the first call, a loss or tokens.
    """

    name: str
    process: subprocess.Popen[str]
    times: list[float] = dataclasses.field(default_factory=list)
    cpu: list[float] = dataclasses.field(default_factory=list)
    first: Any = None

    def take(self, *, counts: bool) -> None:
        """Call the side once."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise ChildProcessError(f"the side {self.name} has ended: see above")
        found = json.loads(line)
        self.first = found["value"] if self.first is None else self.first
        if counts:
            self.times.append(found["seconds"])
            self.cpu.append(found["cpu"])


def main(arguments: Sequence[str]) -> None:
    """Print a line for each side of each row."""
    options = _parse(arguments)
    if options.json:
        command_line.check_file("--json", options.json)
    results = []
    for name in options.rows:
        row, load = ROWS[name], wait_until_quiet()
        compiled = row.compiled and not options.no_compiled
        beside_t5x = row.optimizer == "adafactor" and options.t5x
        names = ["eager", *["compiled"] * compiled, *[_T5X] * bool(beside_t5x), *row.ours]
        with (
            tempfile.TemporaryDirectory() as folder,
            started(row, names, folder, preload=options.preload, t5x=options.t5x) as sides,
        ):
            for number in range(WARM_UP + options.repeats):
                for side in sides:
                    side.take(counts=number >= WARM_UP)
        print(f"{row.title} (load {load:.2f} before; {agreement(row, sides)})", flush=True)
        results.append({"row": name, "load": load, "sides": report(row, sides)})
    if options.json:
        command_line.write_json(options.json, results)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = ArgumentParser(__doc__, prog="python -m benchmarks.beside_pytorch")
    parser.add_argument(
        "--rows",
        nargs="+",
        default=[name for name, row in ROWS.items() if not row.gpu],
        choices=list(ROWS),
    )
    parser.add_argument("--repeats", type=count, default=5)
    parser.add_argument("--json", metavar="FILE", help="JSON file for the figures")
    parser.add_argument("--preload", metavar="FILE", help="a library that all sides preload")
    parser.add_argument("--t5x", nargs=2, metavar=("FLAX", "SOURCE"), help="measure T5X, too")
    parser.add_argument("--no-compiled", action="store_true", help="leave torch.compile out")
    options = parser.parse_args(arguments)
    if None in map(importlib.util.find_spec, ("torch", "transformers")):
        parser.error("torch or transformers is not there: pip install torch transformers")
    return options


def wait_until_quiet() -> float:
    """Wait for a load below 1, and return it."""
    while (load := os.getloadavg()[0]) >= _QUIET:
        time.sleep(2)
    return load


@contextlib.contextmanager
def started(
    row: Row, names: Sequence[str], folder: str, *, preload: str | None, t5x: Sequence[str] | None
) -> Iterator[list[Side]]:
    """Start the processes of the sides; the first writes the weights that the others read."""
    environment, source = t5x or ("", "")
    sides: list[Side] = []
    try:
        for name in names:
            library = preload or (None if MODULES[name] == "theirs" else startup.find_tcmalloc())
            extra = {"LD_PRELOAD": str(library)} if library else {}
            python = sys.executable
            if name == _T5X:
                python, extra["PYTHONPATH"] = f"{environment}/bin/python", source
            command = [python, "-m", "benchmarks.beside_pytorch_side"]
            process = subprocess.Popen(
                [*command, name, row.name, folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | extra,
            )
            sides.append(Side(name, process))
            sides[-1].take(counts=False)
        yield sides
    finally:
        for side in sides:
            side.process.kill()
            side.process.wait()


def agreement(row: Row, sides: Sequence[Side]) -> str:
    """Describe how far the results of the sides agree."""
    eager, ours = sides[0].first, sides[-1].first
    if row.what == "train":
        return f"first losses {eager:.4f}, {ours:.4f}"
    if row.what == "generate":
        pairs = [
            (a, b) for x, y in zip(eager, ours, strict=True) for a, b in zip(x, y, strict=False)
        ]
        return f"{statistics.mean(a == b for a, b in pairs):.0%} of the tokens equal"
    return "the same product"


def report(row: Row, sides: Sequence[Side]) -> dict[str, Any]:
    """Print the figures of each side, and return them."""
    eager, found = sides[0].times, {}
    for side in sides:
        ratios = [a / b for a, b in zip(eager, side.times, strict=True)]
        ratio = statistics.median(eager) / statistics.median(side.times)
        seconds, cpu = statistics.median(side.times), statistics.median(side.cpu)
        found[side.name] = {
            "rate": row.work / seconds,
            "seconds": seconds,
            "spread": [min(side.times), max(side.times)],
            "cpu": cpu,
            "ratio": ratio,
            "ratios": [min(ratios), max(ratios)],
        }
        print(
            f"  {side.name:9} {row.work / seconds:8.1f} {row.unit}"
            f"  {seconds:6.3f} s ({min(side.times):.3f} to {max(side.times):.3f}), {cpu:6.2f} CPU-s"
            f"  ratio {ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            flush=True,
        )
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
