"""Read the rows of text, JSON Lines, Parquet and ArrayRecord files by index, in any order."""

import bisect
import contextlib
import functools
import glob
import itertools
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, BinaryIO, Generic, Protocol, TypeAlias, TypeVar

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

FileRow: TypeAlias = Mapping[str, Any]  # {field: a text}
Columns: TypeAlias = Mapping[str, str]  # {field of a row: its name in the file}
Content = TypeVar("Content", covariant=True)


class ByIndex(Protocol[Content]):
    """Rows, or parts of rows, in any order."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, number: int) -> Content:
        """Return a row.

        Raises:
            FileError: the row is damaged, or has no text.
        """


FileRows: TypeAlias = ByIndex[FileRow | None]  # None for a blank line


class Joined(Generic[Content]):
    """The rows of several files, one file after the other."""

    def __init__(self, parts: Sequence[ByIndex[Content]]):
        self._parts = parts
        self._ends = [*itertools.accumulate(map(len, parts))]

    def __len__(self) -> int:
        """Return the number of rows of all files."""
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, number: int) -> Content:
        """Return a row, see `ByIndex`."""
        index = bisect.bisect_right(self._ends, number)
        return self._parts[index][number - self._ends[index] + len(self._parts[index])]


class Files(Joined[FileRow | None]):
    """The rows of files.

    Attributes:
        paths: the files.
        columns: the fields of a row.
    """

    def __init__(self, parts: Sequence[FileRows], *, paths: Sequence[str], columns: Columns):
        super().__init__(parts)
        self.paths, self.columns = list(paths), columns


def open_files(setting: str, patterns: str | Sequence[str], columns: Columns) -> Files:
    """Open files of one of the formats in `_FORMATS`.

    Args:
        setting: the name of the setting with the files, for messages.
        patterns: a path, a pattern (`*`, `?`, `[a-z]`) or a list of these.
        columns: the fields, or columns, of the texts. Lines of text have only "text".

    Raises:
        ValueError: no file matches, a file's format is unknown, formats differ, or a file cannot be
            read or lacks a column.
    """
    names = sorted({*expand(setting, patterns)})
    open_file = _reader(setting, names)
    parts = [_opened(setting, open_file, path, columns) for path in names]
    return Files(parts, paths=names, columns=columns)


class Lines:
    """The lines of a file.

    A compressed file is unpacked into a temporary file, which exists as long as this process.
    """

    def __init__(self, path: str):
        self._path = path
        with reading.open_bytes(path) as file:
            self._content = _content(file, path, packed=reading.is_compressed(path))
        beginning = self._content.read(0, min(_MARK, len(self._content)))
        mark = len(beginning) - len(reading.without_mark(beginning, path))
        self._starts = _line_starts(self._content, mark)

    def __len__(self) -> int:
        """Return the number of lines."""
        return len(self._starts) - 1

    def __getitem__(self, number: int) -> str:
        """Return a line without its end.

        Raises:
            FileError: the line is not UTF-8, or the file has been written since it was opened.
        """
        content = self._content.read(*self._starts[number : number + 2].tolist())
        content = content.removesuffix(b"\n").removesuffix(b"\r")
        return reading.decode(content, self._path, line=number + 1)


class SideBySide:
    """Rows whose fields are the lines of several files with equally many lines."""

    def __init__(self, sides: Mapping[str, Lines]):
        self._sides = sides

    def __len__(self) -> int:
        """Return the number of lines of each file."""
        return min(map(len, self._sides.values()))

    def __getitem__(self, number: int) -> FileRow:
        """Return a line of each file; raise FileError if one is not UTF-8."""
        return {field: lines[number] for field, lines in self._sides.items()}


class ParsedLines:
    """Rows that are written in the lines of a file.

    Args:
        path: path of the file.
        parse: returns the row of a line; raises ValueError.
    """

    def __init__(self, path: str, parse: Callable[[str], FileRow]):
        self._lines, self._path, self._parse = Lines(path), path, parse

    def __len__(self) -> int:
        """Return the number of lines."""
        return len(self._lines)

    def __getitem__(self, number: int) -> FileRow | None:
        """Return the row of a line; None for a blank line.

        Raises:
            FileError: the line is not UTF-8, or cannot be parsed.
        """
        line = self._lines[number]
        if reading.is_blank(line):
            return None
        with _located(f"{self._path}:{number + 1}"):
            return self._parse(line)


def _text_lines(path: str, columns: Columns) -> FileRows:
    if dict(columns) != {"text": "text"}:
        field, column = next(iter(columns.items()))
        raise ValueError(f"{field}={column!r}: {path} has lines, whose only column is 'text'.")
    return SideBySide({"text": Lines(path)})


def _json_lines(path: str, columns: Columns) -> FileRows:
    return ParsedLines(path, lambda line: _fields(line, columns))


def _fields(line: str, columns: Columns) -> FileRow:
    row = reading.json_object(line)
    return {field: reading.field_text(row, column) for field, column in columns.items()}


@contextlib.contextmanager
def _located(where: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise FileError(f"{where}: {error}") from error


class _Content:
    """The bytes of an open file, for several threads.

    A file that is written while it is mapped into memory would end the process by a signal.
    """

    def __init__(self, file: IO[bytes], path: str):
        self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        self._path, self._state = path, self._now()

    def __len__(self) -> int:
        return self._state[0]

    def read(self, begin: int, end: int) -> bytes:
        """Return bytes `begin` to `end`; raise FileError if the file has been written."""
        parts: list[bytes] = []
        while begin < end and (part := os.pread(self._file, end - begin, begin)):
            parts.append(part)
            begin += len(part)
        if begin < end or self._now() != self._state:
            raise FileError(f"{self._path}: it has been written since it was opened")
        return b"".join(parts)

    def _now(self) -> tuple[int, int]:
        state = os.fstat(self._file)
        return state.st_size, state.st_mtime_ns


def _content(file: BinaryIO, path: str, *, packed: bool) -> _Content:
    if not packed:
        return _Content(file, path)
    with tempfile.TemporaryFile() as unpacked:
        shutil.copyfileobj(file, unpacked, _BLOCK)
        unpacked.flush()
        return _Content(unpacked, path)


class Parquet:
    """The texts of columns of a Parquet file; a null is an empty text."""

    def __init__(self, path: str, columns: Columns):
        self._columns = columns
        self._file = reading.ParquetFile(path)
        for field, column in columns.items():
            self._file.check(field, column)
        self._ends = [*itertools.accumulate(self._file.rows)]
        self._group = functools.lru_cache(_ROW_GROUPS)(self._read)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, number: int) -> FileRow:
        """Return the texts of a row.

        Raises:
            FileError: its row group is damaged.
        """
        group = bisect.bisect_right(self._ends, number)
        columns, index = self._group(group), number - self._ends[group]
        return {field: texts[index] for field, texts in zip(self._columns, columns, strict=True)}

    def _read(self, group: int) -> list[list[str]]:
        return self._file.read(group, list(self._columns.values()))


class ArrayRecord:
    """The texts of an ArrayRecord file whose records are JSON objects."""

    def __init__(self, path: str, columns: Columns):
        self._path, self._columns = path, columns
        self._records = Records(path)

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._records)

    def __getitem__(self, number: int) -> FileRow:
        """Return the texts of a record.

        Raises:
            FileError: the record is damaged, or is not an object with the texts.
        """
        where = f"{self._path}: record {number}"
        content = self._records[number]
        try:
            line = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FileError(f"{where}: it is not UTF-8: {error.reason}") from error
        with _located(where):
            return _fields(line, self._columns)


_PACKED = (".txt", ".jsonl", ".json")  # formats that may be compressed
_FORMATS: dict[str, Callable[[str, Columns], FileRows]] = {
    ".txt": _text_lines,
    ".jsonl": _json_lines,
    ".json": _json_lines,
    ".parquet": Parquet,
    ".array_record": ArrayRecord,
    ".arrayrecord": ArrayRecord,
}


def _line_starts(content: _Content, first: int) -> np.ndarray:
    """Return the offset of each line, from byte `first`, and of the end: int64 [lines + 1]."""
    size, offsets = len(content), [np.full(1, first, np.int64)]
    for begin in range(0, size, _BLOCK):
        block = np.frombuffer(content.read(begin, min(begin + _BLOCK, size)), np.uint8)
        offsets.append(np.flatnonzero(block == ord("\n")) + begin + 1)
    starts = np.concatenate(offsets)
    return starts if starts[-1] == size else np.append(starts, size)


def expand(setting: str, patterns: str | Sequence[str], *, any_name: bool = False) -> list[str]:
    """Return the files that match, in sorted order for each pattern.

    Args:
        setting: the name of the setting with the patterns, for messages.
        patterns: a path, a pattern or a list of these.
        any_name: whether names need not end as one of `_FORMATS`.

    Raises:
        ValueError: a pattern matches no file, or a folder.
    """
    files: list[str] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if "://" in pattern:
            files += sorted(_in_bucket(setting, pattern, any_name=any_name))
            continue
        path = os.path.expanduser(pattern)
        matches = [path] if os.path.exists(path) else sorted(glob.glob(path))
        if any(map(os.path.isdir, matches)):
            raise ValueError(f"{setting}={pattern!r} is a folder: name files, as {pattern}/*.jsonl")
        if not matches:
            folder = os.path.dirname(path) or "."
            names = os.listdir(folder) if os.path.isdir(folder) else []
            raise ValueError(
                f"{setting}={pattern!r} matches no file."
                + hint(
                    os.path.basename(path), [name for name in names if any_name or _suffix(name)]
                )
            )
        files += matches
    if not files:
        raise ValueError(f"{setting}={patterns!r} is not set: give a file, a pattern or a list.")
    return files


def _in_bucket(setting: str, pattern: str, *, any_name: bool) -> list[str]:
    """Return the matching files of a bucket."""
    paths.check_bucket(setting, pattern)
    matches = [path for path in paths.matches(pattern) if any_name or _suffix(path)]
    if not matches:
        kinds = "" if any_name else f" of {', '.join(_FORMATS)}"
        raise ValueError(f"{setting}={pattern!r} matches no file{kinds}.")
    return matches


def _suffix(path: str) -> str:
    """Return the suffix of a format, without the suffix of a compression; "" for no format."""
    suffix = os.path.splitext(reading.uncompressed(path))[1]
    allowed = _PACKED if reading.is_compressed(path) else _FORMATS
    return suffix if suffix in allowed else ""


def _reader(setting: str, paths: Sequence[str]) -> Callable[[str, Columns], FileRows]:
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


def _opened(
    setting: str, reader: Callable[[str, Columns], FileRows], path: str, columns: Columns
) -> FileRows:
    try:
        return reader(paths.local_copy(path), columns)
    except OSError as error:
        raise ValueError(f"{setting}: {path} cannot be read: {error}") from error
