"""Read the string columns of a Parquet file by row group."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from t5x_like import paths
from t5x_like.names import hint
from t5x_like.reading.compressed import FileError


class TextColumns:
    """The string columns of a Parquet file.

    Args:
        name: the name of the file.

    Raises:
        FileError: it is damaged, or is not a Parquet file.
        OSError: it cannot be read.

    Attributes:
        columns: the names of its string columns.
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
            ValueError: there is no such column; the message has the setting, and the nearest name
                or the column's actual type.
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
            found = {name: table.column(name).to_pylist() for name in columns}
        return [[one or "" for one in found[name]] for name in columns]

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
    import pyarrow

    types = pyarrow.types
    if types.is_dictionary(type_):
        type_ = type_.value_type
    tests = (types.is_string, types.is_large_string, types.is_string_view)
    return any(test(type_) for test in tests)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
