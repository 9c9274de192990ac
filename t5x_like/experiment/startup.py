"""What a command does before its imports: tcmalloc, and TensorFlow without its messages."""

import contextlib
import importlib.util
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
_LIBRARIES = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")


def use_tcmalloc(folders: Iterable[str] = _FOLDERS) -> None:
    """Start this command again with tcmalloc, if it is installed; call it before JAX is imported.

    XLA allocates the temporary arrays of a step and frees them at its end. The C library returns
    them to the kernel, which zeroes each page again at the next step: a tenth to a third of the
    time of a step on a CPU (docs/performance.md). tcmalloc keeps them.

    If LD_PRELOAD is already set, even to "", nothing is done.
    """
    library = find_tcmalloc(folders)
    if library is None or "LD_PRELOAD" in os.environ or "jax" in sys.modules:
        return
    environment = os.environ | {"LD_PRELOAD": str(library)}
    os.execve(sys.executable, sys.orig_argv, environment)


@contextlib.contextmanager
def preloading_tcmalloc(folders: Iterable[str] = _FOLDERS) -> Iterator[None]:
    """Let processes that are started in this context allocate by tcmalloc, if it is installed."""
    library = find_tcmalloc(folders)
    if library is None or "LD_PRELOAD" in os.environ:
        yield
        return
    os.environ["LD_PRELOAD"] = str(library)
    try:
        yield
    finally:
        del os.environ["LD_PRELOAD"]


def find_tcmalloc(folders: Iterable[str] = _FOLDERS) -> pathlib.Path | None:
    """Return the path of tcmalloc, or None if it is not installed."""
    files = (pathlib.Path(folder) / name for name in _LIBRARIES for folder in folders)
    return next((file for file in files if file.is_file()), None)


def tcmalloc_in_use() -> str | None:
    """Return the name of the preloaded tcmalloc, or None if the C library allocates."""
    preloaded = os.environ.get("LD_PRELOAD", "")
    return next((name for name in _LIBRARIES if name in preloaded), None)


def silence_tensorflow() -> None:
    """Hide TensorFlow's messages about instruction sets and GPUs: here it only reads text."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    quiet = any(isinstance(finder, _QuietImport) for finder in sys.meta_path)
    if "tensorflow" not in sys.modules and not quiet:
        sys.meta_path.insert(0, _QuietImport())


class _QuietImport:
    """Imports TensorFlow with standard error closed, since some messages ignore its log level."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_quietly(module: ModuleType) -> None:
                with _standard_error_closed():
                    load(module)

            spec.loader.exec_module = exec_quietly  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _standard_error_closed() -> Iterator[None]:
    """Discard everything written to standard error, also by C++ code."""
    sys.stderr.flush()
    original = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(original, 2)
        os.close(original)
