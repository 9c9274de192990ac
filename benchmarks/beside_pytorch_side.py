"""One side of a row of benchmarks/beside_pytorch.py: `SIDE ROW FOLDER`, a call per input line.

Each call is answered by a line of JSON: its seconds, its CPU seconds, and its result.
"""

import importlib
import json
import pathlib
import resource
import sys
import time
from typing import Any

from benchmarks.beside_pytorch_rows import ROWS

# The module of a side; here the side is the setting `loop`.
MODULES = {"eager": "theirs", "compiled": "theirs", "t5x": "t5x", "scan": "ours", "auto": "ours"}


def main(side: str, name: str, folder: str) -> None:
    """Answer calls until standard input ends."""
    row = ROWS[name]
    # Only one of the frameworks is imported into a process.
    module = importlib.import_module(f"benchmarks.beside_pytorch_{MODULES[side]}")
    call: Any = getattr(module, row.what)(row, side, pathlib.Path(folder))
    for _ in sys.stdin:
        start, before = time.perf_counter(), _cpu_seconds()
        value = call()
        found = {
            "seconds": time.perf_counter() - start,
            "cpu": _cpu_seconds() - before,
            "value": value,
        }
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


def _cpu_seconds() -> float:
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


if __name__ == "__main__":
    main(*sys.argv[1:])
