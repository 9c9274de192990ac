"""The memory allocator of a command: tcmalloc, which keeps a step's memory for the next."""

import os
import pathlib
import sys
from collections.abc import Iterable

_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
_LIBRARIES = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")


def use(folders: Iterable[str] = _FOLDERS) -> None:
    """Start this command again with tcmalloc, if it is installed; call it before JAX is imported.

    XLA allocates the temporary arrays of a step and frees them at its end. The C library returns
    them to the kernel, which zeroes each page again at the next step: a tenth to a third of the
    time of a step on a CPU (docs/performance.md). tcmalloc keeps them.

    If LD_PRELOAD is already set, even to "", nothing is done.
    """
    library = find(folders)
    if library is None or "LD_PRELOAD" in os.environ or "jax" in sys.modules:
        return
    environment = os.environ | {"LD_PRELOAD": str(library)}
    os.execve(sys.executable, sys.orig_argv, environment)


def find(folders: Iterable[str] = _FOLDERS) -> pathlib.Path | None:
    """Return the path of tcmalloc, or None if it is not installed."""
    files = (pathlib.Path(folder) / name for name in _LIBRARIES for folder in folders)
    return next((file for file in files if file.is_file()), None)


def in_use() -> str | None:
    """Return the name of the preloaded tcmalloc, or None if the C library allocates."""
    preloaded = os.environ.get("LD_PRELOAD", "")
    return next((name for name in _LIBRARIES if name in preloaded), None)
