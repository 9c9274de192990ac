"""Files of a training step that another program compiled, for benchmarks/compiled_beside.py.

This runs in the other program's environment: STEM.hlo.gz has the optimized program and STEM.json
what else is needed to count it: the compiler's memory analysis, the mesh with the coordinates of
its devices, the versions, and the seconds of compiling. If the step does not fit, STEM.json only
has the versions and the compiler's message, `why`.
"""

import contextlib
import gzip
import importlib.metadata
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

# libtpu only compiles here, so another process may hold its lock.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # devices are described, not used

import jax

_SIZES = (
    "peak_memory_in_bytes",
    "argument_size_in_bytes",
    "output_size_in_bytes",
    "alias_size_in_bytes",
)


def write(
    stem: str, compiled: Any, mesh: Any, *, seconds: float, packages: Sequence[str] = ()
) -> None:
    """Write the files of a program.

    Args:
        stem: the files without their endings.
        compiled: the program.
        mesh: its mesh.
        seconds: the time of compiling.
        packages: distributions whose versions are stored besides jax's and libtpu's.
    """
    with gzip.open(f"{stem}.hlo.gz", "wt", encoding="utf-8") as file:
        file.write(compiled.as_text())
    stats = compiled.memory_analysis()
    found = {
        "versions": _versions(packages),
        "memory": {name: getattr(stats, name) for name in _SIZES},
        "mesh": dict(mesh.shape),
        "coordinates": [list(device.coords) for device in mesh.devices.flat],
        "seconds": seconds,
    }
    pathlib.Path(f"{stem}.json").write_text(json.dumps(found), "utf-8")


@contextlib.contextmanager
def noting_what_does_not_fit(stem: str, *, packages: Sequence[str] = ()) -> Iterator[None]:
    """Write the compiler's message to STEM.json if a program within does not fit into memory."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        refused = {"versions": _versions(packages), "why": str(error)}
        pathlib.Path(f"{stem}.json").write_text(json.dumps(refused), "utf-8")


def _versions(packages: Sequence[str]) -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in (*packages, "jax", "libtpu")}
