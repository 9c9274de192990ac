"""MaxText's side of benchmarks/beside_maxtext.py: `STEM SETTING=VALUE ...`, in its environment.

It runs MaxText's own `train_compile` with these settings, and writes the optimized program to
STEM.hlo.gz and what else is needed to count it to STEM.json: the compiler's memory and cost
analysis, the mesh with the coordinates of its devices, the versions, and the seconds of compiling.
If the step does not fit, STEM.json only has the versions and the compiler's message, `why`.
"""

import gzip
import importlib.metadata
import json
import os
import pathlib
import sys
import time
from typing import Any

# libtpu only compiles here, so another process may hold its lock.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # devices are described, not used

import jax
import maxtext
from maxtext.trainers.pre_train import train_compile

_SIZES = ("temp", "argument", "output", "alias", "generated_code")


def main(stem: str, settings: list[str]) -> None:
    """Compile a training step and write its files."""
    compile_step = train_compile.jit_and_compile

    def compile_and_write(function: Any, arguments: Any, named: Any, mesh: Any, *rest: Any) -> Any:
        start = time.perf_counter()
        compiled = compile_step(function, arguments, named, mesh, *rest)
        write(stem, compiled, mesh, seconds=time.perf_counter() - start)
        return compiled

    train_compile.jit_and_compile = compile_and_write
    defaults = pathlib.Path(next(iter(maxtext.__path__))) / "configs" / "base.yml"
    try:
        train_compile.main(["train_compile", str(defaults), *settings])
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        refused = {"versions": versions(), "why": str(error)}
        pathlib.Path(f"{stem}.json").write_text(json.dumps(refused), "utf-8")


def write(stem: str, compiled: Any, mesh: Any, *, seconds: float) -> None:
    """Write the program and its numbers."""
    with gzip.open(f"{stem}.hlo.gz", "wt", encoding="utf-8") as file:
        file.write(compiled.as_text())
    stats = compiled.memory_analysis()
    found = {
        "versions": versions(),
        "memory": {name: getattr(stats, f"{name}_size_in_bytes") for name in _SIZES},
        "cost": compiled.cost_analysis(),
        "mesh": dict(mesh.shape),
        "coordinates": [list(device.coords) for device in mesh.devices.flat],
        "seconds": seconds,
    }
    pathlib.Path(f"{stem}.json").write_text(json.dumps(found), "utf-8")


def versions() -> dict[str, str]:
    """Return the versions of what compiles the step."""
    return {name: importlib.metadata.version(name) for name in ("maxtext", "jax", "libtpu")}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
