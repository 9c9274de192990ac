"""Load data modules, the files that a config names as `data.module`, with or without TensorFlow.

A module of seqio tasks has the functions `register` and `documents` (`preprocessing/sources.py`); a
module whose rows are read by grain, without TensorFlow, has `corpora` (`grain_pipeline/corpus.py`).
A module may have both.
"""

import functools
import importlib.util
from pathlib import Path
from types import ModuleType

from t5x_like.names import choose, hint, import_file

_SEQIO = ("seqio", "tensorflow", "tensorflow_datasets", "tensorflow_text")
# What may read the text of a module, and the function that the module has for it.
_DRIVERS = {"seqio": "register", "grain": "corpora"}
_INSTALL = "pip install 't5x_like[seqio]' (in a clone: pip install -e '.[seqio]')"


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
            f"installed: {_INSTALL}, or write the text to files, and read them by "
            "data/text_files.py with data.driver='grain', which needs no seqio"
        ) from error
    lacking = [name for name in ("register", "documents") if not hasattr(module, name)]
    if lacking and not hasattr(module, _DRIVERS["grain"]):
        raise ValueError(f"data.module={str(file)!r} lacks the function {lacking[0]!r}.")
    return module


def driver_of(module: ModuleType, driver: str = "") -> str:
    """Return what reads the text of a data module, "seqio" or "grain".

    Args:
        module: a data module.
        driver: the setting `data.driver`; "" for seqio if the module registers seqio tasks, and
            grain if it does not.

    Raises:
        ValueError: there is no such driver, it cannot read the module, or seqio is not installed.
    """
    driver = driver or ("seqio" if hasattr(module, _DRIVERS["seqio"]) else "grain")
    function = choose("data.driver", driver, _DRIVERS)
    where = f"data.driver={driver!r}: data.module={module.__file__!r}"
    if not hasattr(module, function):
        other = "seqio" if driver == "grain" else "grain"
        files = "data/text_files.py, data/parallel_text.py, data/labelled_files.py"
        advice = f", or write its rows to files that {files} read" if other == "seqio" else ""
        raise ValueError(
            f"{where} has no function {function!r}, and only {other} can read it: set "
            f"data.driver={other!r}{advice}"
        )
    if driver == "seqio" and importlib.util.find_spec("seqio") is None:
        both = hasattr(module, _DRIVERS["grain"])
        other = ", or set data.driver='grain', which needs no seqio" if both else ""
        raise ValueError(f"{where} needs seqio, which is not installed: {_INSTALL}{other}")
    return driver
