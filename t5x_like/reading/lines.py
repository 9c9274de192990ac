"""Read the lines of a text file: only LF and CRLF end a line."""

import codecs
import os
from collections.abc import Iterable, Iterator
from typing import NoReturn

from t5x_like.reading.compressed import FileError, open_bytes

_BLANK = " \t\r\v\f"
_PIECE = 1 << 22  # bytes searched for line ends at once
# UTF-32 first: its little-endian mark begins with the mark of UTF-16.
_OTHER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}

Name = str | os.PathLike[str]


def lines(name: Name) -> Iterator[str]:
    """Yield the lines of a file without their ends, including blank lines.

    Raises:
        FileError: the file is damaged or not UTF-8; the message has the line.
        OSError: it cannot be read.
    """
    with open_bytes(name) as file:
        yield from lines_of(file, os.fspath(name))


def lines_of(file: Iterable[bytes], name: str) -> Iterator[str]:
    """Yield the lines of an opened file or of standard input, see `lines`.

    Args:
        file: yields the bytes up to each LF.
        name: the file's name, for error messages.
    """
    for number, line in enumerate(file, start=1):
        if number == 1:
            line = without_mark(line, name)
        yield decode(line.removesuffix(b"\n").removesuffix(b"\r"), name, line=number)


def numbered(name: Name) -> Iterator[tuple[str, str]]:
    """Yield ("FILE:LINE", line) for each line of a file that is not blank.

    Raises:
        FileError, OSError: see `lines`.
    """
    for number, line in enumerate(lines(name), start=1):
        if not is_blank(line):
            yield f"{os.fspath(name)}:{number}", line


def text(name: Name) -> str:
    """Return the whole text of a file, with its line ends.

    Raises:
        FileError, OSError: see `lines`.
    """
    with open_bytes(name) as file:
        return decode(without_mark(file.read(), os.fspath(name)), os.fspath(name))


def count_lines(name: Name) -> int:
    """Return the number of lines of a file.

    Raises:
        FileError, OSError: see `lines`, but the encoding is not checked.
    """
    count, last = 0, b"\n"
    with open_bytes(name) as file:
        while piece := file.read(_PIECE):
            count, last = count + piece.count(b"\n"), piece[-1:]
    return count + (last != b"\n")


def is_blank(line: str) -> bool:
    """Return whether a line has only ASCII white space; other white space may be a text."""
    return not line.strip(_BLANK)


def without_mark(beginning: bytes, name: str) -> bytes:
    """Remove UTF-8's byte-order mark from the beginning of a file.

    Raises:
        FileError: it has the mark of another encoding.
    """
    for mark, encoding in _OTHER_MARKS.items():
        if beginning.startswith(mark):
            raise FileError(f"{name}:1: it is {encoding}, and must be UTF-8: convert it by iconv")
    return beginning.removeprefix(codecs.BOM_UTF8)


def decode(content: bytes, name: str, *, line: int = 1) -> str:
    """Decode bytes from a file.

    Args:
        content: the bytes of one or several lines.
        name: the file's name, for error messages.
        line: the number of the first line.

    Raises:
        FileError: a line is not UTF-8 or has a NUL.
    """
    try:
        found = content.decode("utf-8")
    except UnicodeDecodeError as error:
        number = line + content.count(b"\n", 0, error.start)
        fail_encoding(f"{name}:{number}", content, error)
    if "\0" in found:
        number = line + content.count(b"\n", 0, content.index(0))
        fail_nul(f"{name}:{number}")
    return found


def fail_encoding(where: str, content: bytes, error: UnicodeDecodeError) -> NoReturn:
    """Raise the FileError of bytes that are not UTF-8."""
    raise FileError(
        f"{where}: it is not UTF-8: {error.reason} 0x{content[error.start]:02x}; convert the file, "
        "as by iconv -f latin1 -t utf-8"
    )


def fail_nul(where: str) -> NoReturn:
    """Raise the FileError of a NUL."""
    raise FileError(f"{where}: it has a NUL, which no text has: it is damaged, or another encoding")
