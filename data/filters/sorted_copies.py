"""Find copies among more items than memory holds: sorted files of hashes, merged range by range.

Each input file gives files of items, sorted by hash. The range of all hashes is divided so that the
items of a part fit in memory; each part is sorted, and all items of a hash but the first are
copies. The result does not depend on how the hashes are divided or in which order parts are done.
"""

import array
import bisect
import io
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from t5x_like import paths

_RUN_ITEMS = 1 << 22  # of a file: 128 MiB
_RANGE_ITEMS = 1 << 23  # merged at once: 320 MiB, and three times as much while they are sorted
_HASHES = 1 << 64


class Item(NamedTuple):
    """Something that may be a copy of another.

    Attributes:
        key: a hash; items with one key are copies.
        rank: of the items with one key the one with the lowest rank stays, and of several such the
            first in the input.
        page, part: where it is in its input file.
    """

    key: int
    rank: int
    page: int
    part: int


class Runs:
    """Writes the items of an input file as sorted files `NAME-0.npy`, ...: uint64 [items, 4].

    A context manager, within which items are added.

    Args:
        folder: the folder of the files.
        name: the beginning of their names.
    """

    def __init__(self, folder: Path, name: str):
        self._folder, self._name = folder, name
        self._numbers = array.array("Q")
        self._files = itertools.count()

    def __enter__(self) -> "Runs":
        for old in self._folder.glob(f"{self._name}-*.npy"):  # of a run that was killed
            old.unlink()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if not kind:
            self._flush()

    def add(self, item: Item) -> None:
        """Add an item."""
        self._numbers.extend(item)
        if len(self._numbers) >= len(Item._fields) * _RUN_ITEMS:
            self._flush()

    def _flush(self) -> None:
        items = np.frombuffer(self._numbers, np.uint64).reshape(-1, len(Item._fields))
        file = self._folder / f"{self._name}-{next(self._files)}.npy"
        np.save(file, items[np.argsort(items[:, 0], kind="stable")])
        self._numbers = array.array("Q")


def ranges(files: Sequence[Sequence[Path]]) -> list[tuple[int, int]]:
    """Divide all hashes into ranges [first, end) whose items fit in memory.

    Args:
        files: for each input file, its files of items.
    """
    items = sum(len(_opened(path)) for own in files for path in own)
    number = max(1, math.ceil(items / _RANGE_ITEMS))
    edges = [_HASHES * n // number for n in range(number + 1)]
    return list(itertools.pairwise(edges))


def write_copies(file: Path, files: Sequence[Sequence[Path]], within: tuple[int, int]) -> None:
    """Write all items of a range but the first of each key: uint32 [copies, 3].

    The columns are the index of the input file, the page and the part; rows are in this order.

    Args:
        file: the file to write.
        files: for each input file, its files of items.
        within: the range.
    """
    found = []
    for number, own in enumerate(files):
        for path in own:
            items = _between(_opened(path), *within)
            found.append(np.insert(items, 2, number, axis=1))
    items = np.concatenate(found) if found else np.zeros((0, 5), np.uint64)
    items = items[np.lexsort(items.T[::-1])]  # by key, rank, file, page, part
    copies = items[1:][items[1:, 0] == items[:-1, 0], 2:].astype(np.uint32)
    content = io.BytesIO()
    np.save(content, copies[np.lexsort(copies.T[::-1])])
    paths.write_whole(file, content.getvalue())


def copies_of(files: Sequence[Path], number: int) -> Mapping[int, set[int]]:
    """Return {page: parts that are copies} of an input file.

    Args:
        files: the files of `write_copies`.
        number: the index of the input file.
    """
    found: dict[int, set[int]] = {}
    for path in files:
        for _, page, part in _between(_opened(path), number, number + 1).tolist():
            found.setdefault(page, set()).add(part)
    return found


def _opened(path: Path) -> np.ndarray:
    return np.load(path, mmap_mode="r")


def _between(rows: np.ndarray, first: int, end: int) -> np.ndarray:
    """Return the rows whose first column, by which they are sorted, is in [first, end)."""
    edges = (bisect.bisect_left(rows, edge, key=lambda row: int(row[0])) for edge in (first, end))
    return np.asarray(rows[slice(*edges)])
