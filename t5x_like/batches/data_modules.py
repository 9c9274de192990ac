"""Load data modules, the files that a config names as `data.module`, with or without TensorFlow.

A module of seqio tasks has the functions `register` and `documents` (`preprocessing/sources.py`); a
module of documents that are read without TensorFlow has `corpora` (`grain_pipeline/corpus.py`).
"""

import functools
from pathlib import Path
from types import ModuleType

from t5x_like.names import hint, import_file

_SEQIO = ("seqio", "tensorflow", "tensorflow_datasets", "tensorflow_text")
CORPORA = "corpora"


def load(path: str) -> ModuleType:
    """Import a data module by its path, once per process.

    Args:
        path: the path of a Python file, such as "data/pydocs.py".

    Raises:
        ValueError: the file does not exist or lacks a function, or it needs seqio, which is not
            installed.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        beside = [str(other) for other in file.parent.glob("*.py")]
        raise ValueError(f"data.module={path!r} does not exist.{hint(path, beside)}")
    return _import(file.resolve())


@functools.cache
def _import(file: Path) -> ModuleType:
    try:
        module = import_file("data.module", file, name=f"data.{file.stem}")
    except ValueError as error:
        missing = error.__cause__
        if not isinstance(missing, ModuleNotFoundError) or missing.name not in _SEQIO:
            raise
        raise ValueError(
            f"data.module={str(file)!r} reads its text by seqio, and {missing.name} is not "
            "installed: pip install 't5x_like[seqio]' (in a clone: pip install -e '.[seqio]'), or "
            "take data/grain_files.py, which reads JSON Lines, Parquet and ArrayRecord files "
            "without it"
        ) from error
    functions = [name for name in ("register", "documents") if not hasattr(module, name)]
    if functions and not hasattr(module, CORPORA):
        raise ValueError(f"data.module={str(file)!r} lacks the function {functions[0]!r}.")
    return module
