"""Read the rows of text, JSON Lines, Parquet and ArrayRecord files by index, in any order."""

import bisect
import functools
import glob
import itertools
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import IO, BinaryIO, Protocol

import numpy as np

from t5x_like import paths, reading
from t5x_like.names import hint
from t5x_like.reading import FileError


class Records:
    """The records of a file.

    Args:
        path: path of the file.

    Raises:
        FileError: the file is damaged, or is not an ArrayRecord file.
    """

    def __init__(self, path: str):
        from grain import sources  # takes a second, and only files of this format need it

        self._path = path
        try:
            self._records = sources.ArrayRecordDataSource([path])
        except (OSError, RuntimeError, ValueError) as error:
            raise FileError(f"{path}: it is not an ArrayRecord file: {_line(error)}") from error

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._records)

    def __getitem__(self, number: int) -> bytes:
        """Return the content of a record.

        Raises:
            FileError: the record is damaged.
        """
        try:
            return self._records[number]
        except (OSError, RuntimeError, ValueError) as error:
            raise FileError(f"{self._path}: record {number} is damaged: {_line(error)}") from error


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


# Row groups of a file that are kept decoded: in shuffled order each row is in a different group.
_ROW_GROUPS = 16
_BLOCK = 1 << 24  # bytes that are searched for line breaks at once
_MARK = 4  # the most bytes of a byte-order mark


class FileRows(Protocol):
    """The texts of a file by index."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, number: int) -> str | None:
        """Return the text of a row; None for a blank line.

        Raises:
            FileError: the row is damaged, or has no text.
        """


class Files:
    """The texts of several files of one format, one file after the other.

    Args:
        setting: the name of the setting with the files, for messages.
        patterns: a path, a pattern (`*`, `?`, `[a-z]`) or a list of these.
        text: the field, or column, of the text.

    Raises:
        ValueError: no file matches, a file's format is unknown, formats differ, or a file cannot be
            read or lacks the column.
    """

    def __init__(self, setting: str, patterns: str | Sequence[str], *, text: str):
        self.paths, self.text = _expand(setting, patterns), text
        open_file = _reader(setting, self.paths)
        self._files = [_opened(setting, open_file, path, text) for path in self.paths]
        self._ends = [*itertools.accumulate(map(len, self._files))]

    def __len__(self) -> int:
        """Return the number of rows of all files."""
        return self._ends[-1]

    def __getitem__(self, number: int) -> str | None:
        """Return the text of a row, see `FileRows`."""
        index = bisect.bisect_right(self._ends, number)
        return self._files[index][number - self._ends[index] + len(self._files[index])]


class TextLines:
    """The lines of a file, each a text.

    A compressed file is unpacked into a temporary file, which exists as long as this process.
    """

    def __init__(self, path: str, text: str):
        self._path, self._text = path, text
        with reading.open_bytes(path) as file:
            self._content = _mapped(file, packed=reading.is_compressed(path))
        beginning = self._content[:_MARK]
        mark = len(beginning) - len(reading.without_mark(beginning, path))
        self._starts = _line_starts(self._content, mark)

    def __len__(self) -> int:
        """Return the number of lines."""
        return len(self._starts) - 1

    def __getitem__(self, number: int) -> str | None:
        """Return a line without its end.

        Raises:
            FileError: the line is not UTF-8.
        """
        content = self._content[self._starts[number] : self._starts[number + 1]]
        content = content.removesuffix(b"\n").removesuffix(b"\r")
        return reading.decode(content, self._path, line=number + 1)


class JsonLines(TextLines):
    """The texts of a file with one JSON object per line."""

    def __getitem__(self, number: int) -> str | None:
        """Return the text of a line; None for a blank line.

        Raises:
            FileError: the line is not UTF-8, or is not an object with a text.
        """
        line = super().__getitem__(number)
        if line is None or reading.is_blank(line):
            return None
        return _text_of(line, self._text, where=f"{self._path}:{number + 1}")


def _mapped(file: BinaryIO, *, packed: bool) -> mmap.mmap | bytes:
    """Return the content of a file in memory that the system may drop and read again."""
    if not packed:
        return _map(file)
    with tempfile.TemporaryFile() as unpacked:
        shutil.copyfileobj(file, unpacked, _BLOCK)
        return _map(unpacked)


def _map(file: IO[bytes]) -> mmap.mmap | bytes:
    empty = not file.seek(0, os.SEEK_END)
    return b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class Parquet:
    """The texts of a column of a Parquet file; a null is an empty text."""

    def __init__(self, path: str, text: str):
        self._text = text
        self._file = reading.TextColumns(path)
        self._file.check("text", text)
        self._ends = [*itertools.accumulate(self._file.rows)]
        self._group = functools.lru_cache(_ROW_GROUPS)(self._read)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, number: int) -> str | None:
        """Return the text of a row.

        Raises:
            FileError: its row group is damaged.
        """
        group = bisect.bisect_right(self._ends, number)
        texts = self._group(group)
        return texts[number - self._ends[group] + len(texts)]

    def _read(self, group: int) -> list[str]:
        return self._file.read(group, [self._text])[0]


class ArrayRecord:
    """The texts of an ArrayRecord file whose records are JSON objects."""

    def __init__(self, path: str, text: str):
        self._path, self._text = path, text
        self._records = Records(path)

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._records)

    def __getitem__(self, number: int) -> str | None:
        """Return the text of a record.

        Raises:
            FileError: the record is damaged, or is not an object with a text.
        """
        where = f"{self._path}: record {number}"
        content = self._records[number]
        try:
            line = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise reading.FileError(f"{where}: it is not UTF-8: {error.reason}") from error
        return _text_of(line, self._text, where=where)


_PACKED = (".txt", ".jsonl", ".json")  # formats that may be compressed
_FORMATS: dict[str, Callable[[str, str], FileRows]] = {
    ".txt": TextLines,
    ".jsonl": JsonLines,
    ".json": JsonLines,
    ".parquet": Parquet,
    ".array_record": ArrayRecord,
    ".arrayrecord": ArrayRecord,
}


def _line_starts(content: mmap.mmap | bytes, first: int) -> np.ndarray:
    """Return the offset of each line, from byte `first`, and of the end: int64 [lines + 1]."""
    size, found = len(content), [np.full(1, first, np.int64)]
    for begin in range(0, size, _BLOCK):
        block = np.frombuffer(content[begin : begin + _BLOCK], np.uint8)
        found.append(np.flatnonzero(block == ord("\n")) + begin + 1)
    starts = np.concatenate(found)
    return starts if starts[-1] == size else np.append(starts, size)


def _text_of(line: str, field: str, *, where: str) -> str:
    try:
        return reading.field_text(reading.json_object(line), field)
    except ValueError as error:
        raise reading.FileError(f"{where}: {error}") from error


def _expand(setting: str, patterns: str | Sequence[str]) -> list[str]:
    """Return the files that match, sorted and without duplicates."""
    found: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if "://" in pattern:
            found.update(_in_bucket(setting, pattern))
            continue
        path = os.path.expanduser(pattern)
        matches = [path] if os.path.exists(path) else glob.glob(path)
        if any(map(os.path.isdir, matches)):
            raise ValueError(f"{setting}={pattern!r} is a folder: name files, as {pattern}/*.jsonl")
        if not matches:
            folder = os.path.dirname(path) or "."
            there = os.listdir(folder) if os.path.isdir(folder) else []
            raise ValueError(
                f"{setting}={pattern!r} matches no file."
                + hint(os.path.basename(path), [name for name in there if _suffix(name)])
            )
        found.update(matches)
    if not found:
        raise ValueError(f"{setting}={patterns!r} is not set: give a file, a pattern or a list.")
    return sorted(found)


def _in_bucket(setting: str, pattern: str) -> list[str]:
    """Return the matching files of a bucket."""
    paths.check_bucket(setting, pattern)
    matches = [path for path in paths.matches(pattern) if _suffix(path)]
    if not matches:
        raise ValueError(f"{setting}={pattern!r} matches no file of {', '.join(_FORMATS)}.")
    return matches


def _suffix(path: str) -> str:
    """Return the suffix of a format, without the suffix of a compression; "" for no format."""
    suffix = os.path.splitext(reading.uncompressed(path))[1]
    allowed = _PACKED if reading.is_compressed(path) else _FORMATS
    return suffix if suffix in allowed else ""


def _reader(setting: str, paths: Sequence[str]) -> Callable[[str, str], FileRows]:
    formats = {}
    for path in paths:
        if not _suffix(path):
            packed = reading.is_compressed(path)
            advice = " Only text and JSON Lines may be compressed: unpack it." if packed else ""
            raise ValueError(
                f"{setting}: {path} has none of the suffixes {', '.join(_FORMATS)}.{advice}"
            )
        formats[_FORMATS[_suffix(path)]] = path
    if len(formats) > 1:
        raise ValueError(f"{setting}: {' and '.join(formats.values())} differ in format.")
    return next(iter(formats))


def _opened(setting: str, reader: Callable[[str, str], FileRows], path: str, text: str) -> FileRows:
    try:
        return reader(paths.local_copy(path) if paths.in_bucket(path) else path, text)
    except OSError as error:
        raise ValueError(f"{setting}: {path} cannot be read: {error}") from error
