"""Training steps that another program compiles beside ours, and the table that compares them.

Each side of a row runs in a separate process: ours is `python -m t5x_like.plan`, the other a module
of benchmarks/ in the environment of the other program. Both use the libtpu of that environment. No
TPU is needed. The planner (t5x_like/research/planning) counts both programs, so that the same rules
hold for both. The results are stored in runs/, with the other side's program.

The table has for each chip the FLOPs of the matrix products, the bytes of temporaries, the bytes
read from and written to memory, the bytes sent to other chips, and the utilization in FLOPs of our
model if nothing overlaps (docs/plans.md).
"""

import dataclasses
import gzip
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np
from jax.sharding import Mesh

from t5x_like.config import one_line_errors
from t5x_like.experiment import command_line
from t5x_like.names import choose
from t5x_like.research.planning import chips, compiling, hlo, report

ROOT = pathlib.Path(__file__).resolve().parents[1]
_PROBE = """
import importlib.metadata, importlib.util, json, pathlib, sys
found = {name: importlib.metadata.version(name) for name in sys.argv[1:]}
found["library"] = str(pathlib.Path(importlib.util.find_spec("libtpu").origin).parent / "libtpu.so")
print(json.dumps(found))
"""


@dataclasses.dataclass(frozen=True)
class Row:
    """A training step that both sides compile.

    Attributes:
        title: model and layout.
        topology: the slice.
        config: makes our config.
        settings: the other side's settings.
    """

    title: str
    topology: str
    config: Callable[[], ml_collections.ConfigDict]
    settings: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Environment:
    """An environment with the other program.

    Attributes:
        python: its interpreter.
        library: its libtpu, which both sides use.
        versions: {distribution: version}, among them "jax" and "libtpu".
    """

    python: pathlib.Path
    library: str
    versions: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The rows that another program compiles beside ours.

    benchmarks/beside_NAME_rows.py has the rows, and benchmarks/beside_NAME_theirs.py compiles the
    other side. The results are in runs/beside_NAME.

    Attributes:
        name: the other side, also the flag of its environment.
        title: its name in the table.
        rows: {name: row}.
        packages: distributions that the environment needs besides jax and libtpu.
        advice: arguments of `pip install` for them.
        options: further arguments of the module that compiles the other side.
    """

    name: str
    title: str
    rows: Mapping[str, Row]
    packages: tuple[str, ...]
    advice: str
    options: tuple[str, ...] = ()

    @property
    def sides(self) -> tuple[str, str]:
        """The names of both sides, ours first."""
        return "ours", self.name

    @property
    def results(self) -> pathlib.Path:
        """The folder of the results."""
        return ROOT / "runs" / f"beside_{self.name}"


def run(
    comparison: Comparison, *, names: Sequence[str], folder: str, only: str | None = None
) -> None:
    """Compile rows and print the table.

    Args:
        comparison: the rows and the other side.
        names: the rows to compile; all, if empty.
        folder: the environment of the other program.
        only: the only side to compile; the stored results of the other are read.
    """
    jax.config.update("jax_platforms", "cpu")  # devices are described, not used
    with one_line_errors(ValueError):
        for name in names:
            choose("the row", name, comparison.rows)
        environment = find_environment(comparison, folder)
        names = names or list(comparison.rows)
        sides = comparison.sides if only is None else (only,)
        for name in names:
            check_stored(comparison, name, compiled=sides, libtpu=environment.versions["libtpu"])
    os.environ["TPU_LIBRARY_PATH"] = environment.library
    comparison.results.mkdir(parents=True, exist_ok=True)
    lines = []
    for name in names:
        for side in sides:
            compile_side(comparison, side, name, environment)
        lines.append(line(comparison.rows[name], *results(comparison, name)))
    used = environment.versions
    packages = ", ".join(f"{package} {used[package]}" for package in comparison.packages)
    print(f"libtpu {used['libtpu']}, {packages}; ours / {comparison.title}, for each chip\n")
    print("\n".join([*head(), *lines]))


def find_environment(comparison: Comparison, folder: str) -> Environment:
    """Return the environment in a folder.

    Raises:
        ValueError: the folder has no Python, or it lacks the packages or libtpu.
    """
    python = pathlib.Path(folder).absolute() / "bin" / "python"
    flag = f"--{comparison.name}={folder!r}"
    if not python.is_file():
        raise ValueError(f"{flag} is not an environment: it has no bin/python")
    packages = (*comparison.packages, "jax", "libtpu")
    done = subprocess.run([python, "-c", _PROBE, *packages], capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise ValueError(
            f"{flag} lacks {comparison.title} or libtpu ({reason}): {python} -m pip install "
            f"{comparison.advice}"
        )
    found = json.loads(done.stdout)
    return Environment(python, found.pop("library"), found)


def check_stored(
    comparison: Comparison, name: str, *, compiled: Sequence[str], libtpu: str
) -> None:
    """Check that the results of a side that is not compiled are stored, and from this libtpu.

    Raises:
        ValueError: they are not.
    """
    for side in comparison.sides:
        file = comparison.results / f"{name}.{side}.json"
        if side in compiled:
            continue
        if not file.exists():
            raise ValueError(f"--only={compiled[0]} needs {file}: leave --only out")
        if (by := json.loads(file.read_text())["versions"]["libtpu"]) != libtpu:
            raise ValueError(
                f"--only={compiled[0]}: {file} was compiled by libtpu {by}, and "
                f"--{comparison.name} has {libtpu}: leave --only out"
            )


def compile_side(comparison: Comparison, side: str, name: str, environment: Environment) -> None:
    """Compile a side of a row in a separate process, which stores its results."""
    row, stem = comparison.rows[name], comparison.results / f"{name}.{side}"
    module = f"benchmarks/beside_{comparison.name}"
    if side == "ours":
        command = [sys.executable, "-m", "t5x_like.plan", f"--topology={row.topology}"]
        command += [f"--config={module}_rows.py:{name}", f"--json={stem}.json"]
    else:
        command = [str(environment.python), "-m", f"{module}_theirs".replace("/", ".")]
        command += [str(stem), row.topology, json.dumps(dict(row.settings)), *comparison.options]
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


def results(comparison: Comparison, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the planner found in our program and in the other, as in a plan's JSON."""
    folder, (_, other) = comparison.results, comparison.sides
    ours = json.loads((folder / f"{name}.ours.json").read_text())
    theirs = json.loads((folder / f"{name}.{other}.json").read_text())
    if "why" in theirs:
        return ours, theirs
    with gzip.open(folder / f"{name}.{other}.hlo.gz", "rt", encoding="utf-8") as file:
        text = file.read()
    topology = comparison.rows[name].topology
    return ours, counted(text, theirs, topology=topology, flops=ours["flops_per_step"])


def counted(text: str, found: dict[str, Any], *, topology: str, flops: int) -> dict[str, Any]:
    """Count the other side's program as `plan` counts ours.

    Args:
        text: its optimized HLO.
        found: what `compiled_program.write` wrote beside it.
        topology: the slice.
        flops: the FLOPs of the model in a step.
    """
    slice_of = chips.topology(topology)
    devices: list[Any] = slice_of.devices()
    at = {tuple(device.coords): device for device in devices}
    placed = np.array([at[tuple(place)] for place in found["coordinates"]])
    mesh = Mesh(placed.reshape(tuple(found["mesh"].values())), tuple(found["mesh"]))
    stats = types.SimpleNamespace(**found["memory"])
    memory = {"temporaries": compiling.temporaries(stats, "tpu")}
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


def line(row: Row, ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Return the line of a row: our figures and the other side's."""
    cells = [
        f"{own} / {their}" for own, their in zip(_figures(ours), _figures(theirs), strict=True)
    ]
    return f"| {' | '.join([row.title, row.topology, *cells])} |"


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
