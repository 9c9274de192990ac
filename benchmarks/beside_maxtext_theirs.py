"""MaxText's side of benchmarks/beside_maxtext.py: `STEM TOPOLOGY SETTINGS`, in its environment.

It runs MaxText's own `train_compile` with the settings, JSON, and writes the files of
benchmarks/compiled_program.py. The settings name the slice, too.
"""

import json
import pathlib
import sys
import time
from typing import Any

from benchmarks import compiled_program  # first: it sets variables that JAX reads

# isort: split
import maxtext
from maxtext.trainers.pre_train import train_compile

_PACKAGES = ("maxtext",)


def main(stem: str, settings: dict[str, Any]) -> None:
    """Compile a training step and write its files."""
    compile_step = train_compile.jit_and_compile

    def compile_and_write(function: Any, arguments: Any, named: Any, mesh: Any, *rest: Any) -> Any:
        start = time.perf_counter()
        compiled = compile_step(function, arguments, named, mesh, *rest)
        seconds = time.perf_counter() - start
        compiled_program.write(stem, compiled, mesh, seconds=seconds, packages=_PACKAGES)
        return compiled

    train_compile.jit_and_compile = compile_and_write
    defaults = pathlib.Path(next(iter(maxtext.__path__))) / "configs" / "base.yml"
    assigned = [f"{name}={value}" for name, value in settings.items()]
    with compiled_program.noting_what_does_not_fit(stem, packages=_PACKAGES):
        train_compile.main(["train_compile", str(defaults), *assigned])


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[3]))
