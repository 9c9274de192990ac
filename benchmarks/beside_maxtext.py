"""Compile a training step beside MaxText's for the same slice of TPUs, and compare the programs.

    python3.12 -m venv maxtext && maxtext/bin/pip install 'maxtext[tpu]==0.2.5'
    python -m benchmarks.beside_maxtext --maxtext=maxtext                  all rows
    python -m benchmarks.beside_maxtext --maxtext=maxtext llama2_7b_v5e    only this row
    python -m benchmarks.beside_maxtext --maxtext=maxtext --only=ours      MaxText's as stored

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
        "--only",
        choices=["ours", "maxtext"],
        help="the only side to compile; of the other the stored results are read",
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
from t5x_like.experiment import command_line
from t5x_like.names import choose
from t5x_like.planning import chips, compiling, hlo, report

ROOT = pathlib.Path(__file__).resolve().parents[1]
SIDES = ("ours", "maxtext")
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
        sides = SIDES if arguments.only is None else (arguments.only,)
        for name in names:
            _check_stored(name, compiled=sides, libtpu=environment.versions["libtpu"])
    os.environ["TPU_LIBRARY_PATH"] = environment.library
    RESULTS.mkdir(parents=True, exist_ok=True)
    lines = []
    for name in names:
        for side in sides:
            compile_side(side, name, environment)
        lines.append(line(name, *results(name)))
    used = environment.versions
    print(f"libtpu {used['libtpu']}, MaxText {used['maxtext']}; ours / MaxText, for each chip\n")
    print("\n".join([*head(), *lines]))


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


def _check_stored(name: str, *, compiled: Sequence[str], libtpu: str) -> None:
    """Check that the results of a side that is not compiled are stored, and from this libtpu."""
    for side in SIDES:
        file = RESULTS / f"{name}.{side}.json"
        if side in compiled:
            continue
        if not file.exists():
            raise ValueError(f"--only={compiled[0]} needs {file}: leave --only out")
        if (by := json.loads(file.read_text())["versions"]["libtpu"]) != libtpu:
            raise ValueError(
                f"--only={compiled[0]}: {file} was compiled by libtpu {by}, and --maxtext has "
                f"{libtpu}: leave --only out"
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
    start, results_file = time.monotonic(), pathlib.Path(f"{stem}.json")
    results_file.unlink(missing_ok=True)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    pathlib.Path(f"{stem}.txt").write_text(done.stdout + done.stderr)
    if not results_file.exists():  # the exit status of `plan` is 1 also if the step does not fit
        sys.exit(f"\n{done.stderr}")
    if side == "ours":
        used = {"jax": importlib.metadata.version("jax"), "libtpu": environment.versions["libtpu"]}
        found = json.loads(results_file.read_text())
        command_line.write_json(results_file, found | {"versions": used})
    print(f"{time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def results(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the planner found in our program and in MaxText's, as in a plan's JSON."""
    ours = json.loads((RESULTS / f"{name}.ours.json").read_text())
    theirs = json.loads((RESULTS / f"{name}.maxtext.json").read_text())
    if "why" in theirs:
        return ours, theirs
    with gzip.open(RESULTS / f"{name}.maxtext.hlo.gz", "rt", encoding="utf-8") as file:
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
    return plan | {"devices": len(devices), "versions": found["versions"]}


def head() -> list[str]:
    """Return the first two lines of the table."""
    heads = ["row", "slice", "FLOPs", "temporaries, GB", "memory moved, GB", "sent, GB"]
    heads += ["utilization without overlap", "JAX"]
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]


def line(name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Return the line of a row: our figures and MaxText's."""
    cells = [
        f"{own} / {their}" for own, their in zip(_figures(ours), _figures(theirs), strict=True)
    ]
    return f"| {' | '.join([ROWS[name].title, ROWS[name].topology, *cells])} |"


def _figures(found: dict[str, Any]) -> list[str]:
    jax_version = found["versions"]["jax"]
    if "why" in found:  # the compiler's message about memory
        return ["does not fit", "", "", "", "", jax_version]
    sent = sum(one["bytes"] for one in found["collectives"])
    return [
        f"{found['flops_per_step_compiled'] / found['devices']:.5g}",
        f"{found['bytes_per_device']['temporaries'] / 1e9:.2f}",
        f"{found['memory_traffic'] / 1e9:,.0f}",
        f"{sent / 1e9:.1f}",
        f"{found['utilization_without_overlap']:.1%}",
        jax_version,
    ]


if __name__ == "__main__":
    main(ARGUMENTS)
