"""Compile a training step beside MaxText's for the same slice of TPUs, and compare the programs.

    python3.12 -m venv maxtext && maxtext/bin/pip install 'maxtext[tpu]==0.2.5'
    python -m benchmarks.beside_maxtext --maxtext=maxtext                  all rows
    python -m benchmarks.beside_maxtext --maxtext=maxtext llama2_7b_v5e    only this row
    python -m benchmarks.beside_maxtext --maxtext=maxtext --sides ours     MaxText's as stored

The rows are in benchmarks/beside_maxtext_rows.py. Each side of a row runs in a separate process:
ours is `python -m t5x_like.plan`, MaxText's its own `train_compile` in its environment, and both
use the libtpu of that environment. No TPU is needed. The planner (t5x_like/planning) counts both
programs, so that the same rules hold for both. The results are stored in runs/beside_maxtext/, with
MaxText's program.

The table has for each chip the FLOPs of the matrix products, the bytes of temporaries, the bytes
read from and written to memory, the bytes sent to other chips, and the utilization in FLOPs of our
model if nothing overlaps (docs/plans.md).
"""

if __name__ == "__main__":
    # Before the imports below, which take seconds: help and errors are quick.
    from t5x_like.experiment.command_line import ArgumentParser

    PARSER = ArgumentParser(__doc__, prog="python -m benchmarks.beside_maxtext")
    PARSER.add_argument("names", nargs="*", help="rows to compile; all, if none is named")
    PARSER.add_argument(
        "--maxtext", metavar="FOLDER", required=True, help="the environment with MaxText"
    )
    PARSER.add_argument(
        "--sides",
        nargs="+",
        default=["ours", "maxtext"],
        choices=["ours", "maxtext"],
        help="sides to compile; of the other side the stored results are read",
    )
    ARGUMENTS = PARSER.parse_args()

import argparse
import dataclasses
import gzip
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from benchmarks.beside_maxtext_rows import ROWS
from t5x_like.config import one_line_errors
from t5x_like.names import choose
from t5x_like.planning import chips, compiling, hlo, report

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "runs" / "beside_maxtext"
_PROBE = """
import importlib.metadata, importlib.util, json, pathlib
names = ("maxtext", "jax", "libtpu")
found = {name: importlib.metadata.version(name) for name in names}
found["library"] = str(pathlib.Path(importlib.util.find_spec("libtpu").origin).parent / "libtpu.so")
print(json.dumps(found))
"""


@dataclasses.dataclass(frozen=True)
class Environment:
    """An environment with MaxText.

    Attributes:
        python: its interpreter.
        library: its libtpu, which both sides use.
        versions: {"maxtext", "jax" and "libtpu": version}.
    """

    python: pathlib.Path
    library: str
    versions: dict[str, str]


def main(arguments: argparse.Namespace) -> None:
    """Compile the rows and print the table."""
    jax.config.update("jax_platforms", "cpu")  # devices are described, not used
    with one_line_errors(ValueError):
        for name in arguments.names:
            choose("the row", name, ROWS)
        environment = find_environment(arguments.maxtext)
        names = arguments.names or list(ROWS)
        if missing := [name for name in names if not _stored(name, arguments.sides)]:
            raise ValueError(
                f"--sides={' '.join(arguments.sides)}: {missing[0]} has no stored results of the "
                f"other side in {RESULTS}: leave --sides out"
            )
    os.environ["TPU_LIBRARY_PATH"] = environment.library
    RESULTS.mkdir(parents=True, exist_ok=True)
    lines = []
    for name in names:
        for side in arguments.sides:
            compile_side(side, name, environment)
        lines.append(line(name, *results(name)))
    print("\n".join([versions(environment), "", *head(), *lines]))


def find_environment(folder: str) -> Environment:
    """Return the environment in a folder.

    Raises:
        ValueError: the folder has no Python, or it has no MaxText or libtpu.
    """
    python = pathlib.Path(folder).absolute() / "bin" / "python"
    if not python.is_file():
        raise ValueError(f"--maxtext={folder!r} is not an environment: it has no bin/python")
    done = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise ValueError(
            f"--maxtext={folder!r} lacks MaxText or libtpu ({reason}): {python} -m pip install "
            "'maxtext[tpu]'"
        )
    found = json.loads(done.stdout)
    return Environment(python, found.pop("library"), found)


def _stored(name: str, sides: Sequence[str]) -> bool:
    """Return whether the results of all sides that are not compiled are stored."""
    return all(
        side in sides or (RESULTS / f"{name}.{side}.json").exists() for side in ("ours", "maxtext")
    )


def compile_side(side: str, name: str, environment: Environment) -> None:
    """Compile a side of a row in a separate process, which stores its results."""
    row, stem = ROWS[name], RESULTS / f"{name}.{side}"
    if side == "ours":
        command = [sys.executable, "-m", "t5x_like.plan", f"--topology={row.topology}"]
        command += [f"--config=benchmarks/beside_maxtext_rows.py:{name}", f"--json={stem}.json"]
    else:
        command = [str(environment.python), "benchmarks/beside_maxtext_theirs.py", str(stem)]
        command += [f"{setting}={value}" for setting, value in row.settings.items()]
    print(f"{name}, {side} ...", end=" ", file=sys.stderr, flush=True)
    start = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    (RESULTS / f"{stem}.txt").write_text(done.stdout + done.stderr)
    if done.returncode > (side == "ours"):  # 1 of `plan`: the step does not fit
        sys.exit(f"\n{done.stderr}")
    print(f"{time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def results(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the planner found in our program and in MaxText's, as in a plan's JSON."""
    ours = json.loads((RESULTS / f"{name}.ours.json").read_text())
    stem = RESULTS / f"{name}.maxtext"
    theirs = json.loads((RESULTS / f"{name}.maxtext.json").read_text())
    if "why" in theirs:
        return ours, theirs
    with gzip.open(f"{stem}.hlo.gz", "rt", encoding="utf-8") as file:
        text = file.read()
    return ours, counted(text, theirs, topology=ROWS[name].topology, flops=ours["flops_per_step"])


def counted(text: str, found: dict[str, Any], *, topology: str, flops: int) -> dict[str, Any]:
    """Count MaxText's program as `plan` counts ours.

    Args:
        text: its optimized HLO.
        found: what benchmarks/beside_maxtext_theirs.py wrote beside it.
        topology: the slice.
        flops: the FLOPs of the model in a step.
    """
    slice_of = chips.topology(topology)
    devices: list[Any] = slice_of.devices()
    at = {tuple(device.coords): device for device in devices}
    placed = np.array([at[tuple(place)] for place in found["coordinates"]])
    mesh = Mesh(placed.reshape(tuple(found["mesh"].values())), tuple(found["mesh"]))
    memory = {"temporaries": found["memory"]["temp"]}
    program = compiling.counted(
        text, hlo.parse(text), mesh, memory=memory, seconds=found["seconds"]
    )
    plan = report.measured({"flops_per_step": flops}, program, slice_of, devices)
    return plan | {"devices": len(devices)}


def versions(environment: Environment) -> str:
    """Return a line with the versions of both sides."""
    theirs = environment.versions
    own = importlib.metadata.version("jax")
    return (
        f"libtpu {theirs['libtpu']}; here JAX {own}; MaxText {theirs['maxtext']}, JAX "
        f"{theirs['jax']}; ours / MaxText, for each chip"
    )


def head() -> list[str]:
    """Return the first two lines of the table."""
    heads = ["row", "slice", "FLOPs", "temporaries, GB", "memory moved, GB", "sent, GB"]
    heads += ["utilization without overlap"]
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]


def line(name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Return the line of a row: our figures and MaxText's."""
    cells = [
        f"{own} / {their}" for own, their in zip(_figures(ours), _figures(theirs), strict=True)
    ]
    return f"| {' | '.join([ROWS[name].title, ROWS[name].topology, *cells])} |"


def _figures(found: dict[str, Any]) -> list[str]:
    if "why" in found:  # the compiler's message about memory
        return ["does not fit", "", "", "", ""]
    sent = sum(one["bytes"] for one in found["collectives"])
    return [
        f"{found['flops_per_step_compiled'] / found['devices']:.5g}",
        f"{found['bytes_per_device']['temporaries'] / 1e9:.2f}",
        f"{found['memory_traffic'] / 1e9:,.0f}",
        f"{sent / 1e9:.1f}",
        f"{found['utilization_without_overlap']:.1%}",
    ]


if __name__ == "__main__":
    main(ARGUMENTS)
