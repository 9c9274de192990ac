"""Read the records of an ArrayRecord file by index."""

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
