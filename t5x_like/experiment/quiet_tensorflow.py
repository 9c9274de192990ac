"""Import TensorFlow without its messages."""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def silence() -> None:
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
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
