"""The sizes and checksums of a folder's files: written once, compared before each use.

They reveal damage that neither the rename nor the file format does: bytes that a disk later lost or
changed. A flipped bit in an array, for example, would be read as another number.
"""

import json
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from t5x_like import paths
from t5x_like.processes import from_first_process

NAME = "manifest.json"
_OWN = "sums_of_process_"
_PIECE = 1 << 22  # bytes read at once
_READERS = 8


Checksums = dict[str, list[int]]  # {file name: [bytes, CRC-32]}


def write(folder: epath.Path) -> None:
    """Write the manifest of the files in the folder's subfolders.

    Files whose checksums a process has computed (`sum_own`) are not read again. The manifest has
    two lines: JSON of {file: [bytes, CRC-32]}, and the CRC-32 of that line.
    """
    known: Checksums = {}
    for path in folder.glob(f"{_OWN}*"):
        known |= _read(path)
        path.unlink()
    _write(folder / NAME, known | _sums(folder, [n for n in _names(folder) if n not in known]))


def sum_own(folder: epath.Path, *, process: int, written: Iterable[str]) -> None:
    """Compute and store the checksums of the files that a process has written, for `write`.

    Args:
        folder: the folder of the manifest.
        process: the index of the process.
        written: prefixes of the files' names, relative to the folder.
    """
    prefixes = tuple(written)
    names = [name for name in _names(folder) if name.startswith(prefixes)]
    _write(folder / f"{_OWN}{process}", _sums(folder, names))


def _names(folder: epath.Path) -> list[str]:
    return [name for name in paths.names_below(folder) if "/" in name]


def _sums(folder: epath.Path, names: Sequence[str]) -> Checksums:
    with ThreadPoolExecutor(_READERS) as pool:
        return dict(zip(names, pool.map(lambda name: _measure(folder / name), names), strict=True))


def _write(path: epath.Path, sums: Checksums) -> None:
    body = json.dumps(sums)
    path.write_text(f"{body}\n{zlib.crc32(body.encode())}")


def damage(folder: epath.Path, *, within: str = "") -> str | None:
    """Describe the first damaged file, or return None if all are intact; call it on all processes.

    Each process checks its share of the files.

    Args:
        folder: the folder of the manifest.
        within: check the files of this subfolder only.
    """
    problem = None
    try:
        files = from_first_process(lambda: _read(folder / NAME))
    except FileNotFoundError:
        problem = f"{NAME} is missing"
    except (OSError, ValueError) as error:
        problem = f"{NAME} is not readable: {error}"
    else:
        names = sorted(name for name in files if not within or name.startswith(f"{within}/"))
        share = names[jax.process_index() :: jax.process_count()]
        with ThreadPoolExecutor(_READERS) as pool:
            differences = pool.map(lambda name: _difference(folder, name, files[name]), share)
            problem = next((each for each in differences if each), None)
    if multihost_utils.process_allgather(np.array(problem is not None)).any():
        return problem or "another process found a damaged file"
    return None


def _read(path: epath.Path) -> Checksums:
    body, checksum = path.read_text().splitlines()
    if zlib.crc32(body.encode()) != int(checksum):
        raise ValueError("it does not match its checksum")
    return json.loads(body)


def _difference(folder: epath.Path, name: str, was: Sequence[int]) -> str | None:
    try:
        size, checksum = _measure(folder / name)
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} is not readable: {error}"
    if size != was[0]:
        return f"{name} has {size} bytes of {was[0]}"
    return None if checksum == was[1] else f"{name} does not match its checksum"


def _measure(path: epath.Path) -> list[int]:
    """Return the size in bytes and the CRC-32 of a file."""
    size = checksum = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            size += len(piece)
            checksum = zlib.crc32(piece, checksum)
    return [size, checksum]
