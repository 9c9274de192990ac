"""Read the rows of JSON Lines, TSV, CSV and Parquet files.

Each row of text has its location "FILE:LINE".
"""

import contextlib
import csv
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from t5x_like import paths
from t5x_like.names import hint
from t5x_like.reading.compressed import FileError, open_bytes
from t5x_like.reading.lines import FileName, decode, is_blank, lines, numbered, without_mark

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

Cells = Mapping[str, str]  # {name in the first line: cell}


def json_lines(name: FileName) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("FILE:LINE", object) for each object in a file of JSON Lines.

    Raises:
        FileError: a line is not a JSON object; or see `lines`.
        OSError: the file cannot be read.
    """
    for where, line in numbered(name):
        try:
            row = json_object(line)
        except ValueError as error:
            raise FileError(f"{where}: {error}") from error
        yield where, row


def json_object(line: str) -> dict[str, Any]:
    """Parse a JSON object.

    JSON may contain half a surrogate pair, which UTF-8 cannot encode: it becomes a question mark.

    Raises:
        ValueError: the text is not JSON, or not an object.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        if line.lstrip()[:1] == "[":
            raise ValueError(
                "it is not JSON: the file may be a JSON list, and must have an object on each "
                "line, as jq -c '.[]' writes them"
            ) from error
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"it is not a JSON object, but {line:.40}")
    return _encodable(row) if _SURROGATE.search(line) else row


def field_text(row: Mapping[str, Any], field: str) -> str:
    """Return a field whose value is a string.

    Raises:
        ValueError: the field is missing, or it has another type.
    """
    if field not in row:
        raise ValueError(f"there is no string {field!r}.{hint(field, row)}")
    if not isinstance(row[field], str):
        raise ValueError(
            f"there is no string {field!r}: it is "
            f"{json.dumps(row[field], default=str, ensure_ascii=False):.60}"
        )
    return row[field]


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode()
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(name): _encodable(item) for name, item in value.items()}
    return value


def tsv_rows(
    name: FileName, *, check: Callable[[Sequence[str], str], None] | None = None
) -> Iterator[tuple[str, Cells]]:
    """Yield ("FILE:LINE", row) for each row of a tab-separated table; its first line has the names.

    Quotes are ordinary characters, as in GLUE's files. Blank lines without a tab are skipped.

    Args:
        name: the name of the file.
        check: called with the names and their location "FILE:LINE".

    Raises:
        FileError: a line has more or fewer cells than the first; or see `lines`.
        OSError: the file cannot be read.
    """
    names: list[str] = []
    for number, line in enumerate(lines(name), start=1):
        if is_blank(line) and "\t" not in line:
            continue
        cells = line.split("\t")
        where = f"{os.fspath(name)}:{number}"
        if names:
            yield where, _row(names, cells, where)
            continue
        names = _distinct(cells, where)
        if check is not None:
            check(names, where)


def csv_rows(name: FileName) -> Iterator[tuple[str, Cells]]:
    """Yield ("FILE:LINE", row) for each row of a comma-separated table; the first has the names.

    A cell in quotes may have commas, quotes (written twice) and line breaks. Empty rows are
    skipped.

    Raises:
        FileError: a row has more or fewer cells than the first, or is not CSV; or see `lines`.
        OSError: the file cannot be read.
    """
    shown = os.fspath(name)
    with open_bytes(name) as file:
        # The whole file is read, since a line break may be part of a cell.
        content = decode(without_mark(file.read(), shown), shown)
    lines_with_ends = (line + "\n" for line in content.replace("\r\n", "\n").split("\n"))
    reader = csv.reader(lines_with_ends, strict=True)
    names: list[str] = []
    try:
        for cells in reader:
            where = f"{shown}:{reader.line_num}"
            if cells and names:
                yield where, _row(names, cells, where)
            elif cells:
                names = _distinct(cells, where)
    except csv.Error as error:
        raise FileError(f"{shown}:{reader.line_num}: it is not a row of CSV: {error}") from error


def parquet_rows(name: FileName) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("FILE: row NUMBER", {column: value}) for each row of a Parquet file.

    Raises:
        FileError: see `ParquetFile`.
        OSError: the file cannot be read.
    """
    file, number = ParquetFile(name), itertools.count(1)
    for group in range(len(file.rows)):
        for row in file.objects(group):
            yield f"{os.fspath(name)}: row {next(number)}", row


# {ending of a file with fields: its reader, which yields ("FILE:LINE" or "FILE: row NUMBER", row)}
TABLES: dict[str, Callable[[FileName], Iterator[tuple[str, Mapping[str, Any]]]]] = {
    ".jsonl": json_lines,
    ".tsv": tsv_rows,
    ".csv": csv_rows,
    ".parquet": parquet_rows,
}


def _distinct(names: list[str], where: str) -> list[str]:
    if twice := next((name for name in names if name and names.count(name) > 1), None):
        raise FileError(f"{where}: two columns have the name {twice!r}")
    return names


def _row(names: list[str], cells: list[str], where: str) -> Cells:
    if len(cells) != len(names):
        raise FileError(
            f"{where}: it has {len(cells)} cells, and the first line {len(names)} names"
        )
    return dict(zip(names, cells, strict=True))


class ParquetFile:
    """A Parquet file, read by row groups.

    Args:
        name: the name of the file.

    Raises:
        FileError: it is damaged, or is not a Parquet file.
        OSError: it cannot be read.

    Attributes:
        columns: the names of its columns of strings.
        rows: the number of rows of each row group.
    """

    def __init__(self, name: str | os.PathLike[str]):
        self._name = os.fspath(name)
        with self._opened() as file:
            self._types = {field.name: field.type for field in file.schema_arrow}
            groups = range(file.metadata.num_row_groups)
            self.rows = [file.metadata.row_group(group).num_rows for group in groups]
        self.columns = [name for name, type_ in self._types.items() if _is_text(type_)]

    def check(self, setting: str, column: str) -> None:
        """Check that there is a string column with this name.

        Raises:
            ValueError: the column is missing or has another type; the message has the setting, and
                the nearest name or the column's actual type.
        """
        if column in self.columns:
            return
        type_ = self._types.get(column)
        problem = hint(column, self.columns) if type_ is None else f" Its type is {type_}."
        raise ValueError(
            f"{setting}={column!r}: {self._name} has no such column of strings.{problem}"
        )

    def read(self, group: int, columns: Sequence[str]) -> list[list[str]]:
        """Read the texts of columns in a row group; a null becomes an empty text.

        Raises:
            FileError: the row group is damaged.
        """
        with self._opened() as file, self._named(f"row group {group}: "):
            table = file.read_row_group(group, columns=list(columns))
            values = {name: table.column(name).to_pylist() for name in columns}
        return [[text or "" for text in values[name]] for name in columns]

    def objects(self, group: int) -> list[dict[str, Any]]:
        """Read the rows of a row group as JSON objects.

        Raises:
            FileError: the row group is damaged, or a column has values that JSON cannot have.
        """
        for name, type_ in self._types.items():
            if not _is_json(type_):
                raise FileError(
                    f"{self._name}: the column {name!r} has the type {type_}, which JSON cannot "
                    "have: leave it out, or make it a string"
                )
        with self._opened() as file, self._named(f"row group {group}: "):
            return file.read_row_group(group).to_pylist()

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        import pyarrow.parquet  # not needed for files of lines

        with contextlib.ExitStack() as stack:
            source = stack.enter_context(paths.path(self._name).open("rb"))
            with self._named("it is not a Parquet file: "):
                file = stack.enter_context(pyarrow.parquet.ParquetFile(source))
            yield file

    @contextlib.contextmanager
    def _named(self, problem: str) -> Iterator[None]:
        """Convert errors about the file's content to FileErrors that name the file."""
        import pyarrow

        try:
            yield
        except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
            raise FileError(f"{self._name}: {problem}{_first_line(error)}") from error


def _is_text(type_: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(type_):
        type_ = type_.value_type
    tests = (types.is_string, types.is_large_string, types.is_string_view)
    return any(test(type_) for test in tests)


def _is_json(type_: Any) -> bool:
    from pyarrow import types

    if types.is_struct(type_):
        return all(_is_json(field.type) for field in type_)
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if types.is_dictionary(type_) or any(test(type_) for test in lists):
        return _is_json(type_.value_type)
    tests = (_is_text, types.is_integer, types.is_floating, types.is_boolean, types.is_null)
    return any(test(type_) for test in tests)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
