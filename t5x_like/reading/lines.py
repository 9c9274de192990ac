"""Read the lines of a text file: only LF and CRLF end a line.

Also in blocks, in any order, for positions within large files.
"""

import codecs
import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple, NoReturn

import numpy as np

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

FileName = str | os.PathLike[str]


def lines(name: FileName) -> Iterator[str]:
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


def numbered(name: FileName) -> Iterator[tuple[str, str]]:
    """Yield ("FILE:LINE", line) for each line of a file that is not blank.

    Raises:
        FileError, OSError: see `lines`.
    """
    for number, line in enumerate(lines(name), start=1):
        if not is_blank(line):
            yield f"{os.fspath(name)}:{number}", line


def text(name: FileName) -> str:
    """Return the whole text of a file, with its line ends.

    Raises:
        FileError, OSError: see `lines`.
    """
    with open_bytes(name) as file:
        return decode(without_mark(file.read(), os.fspath(name)), os.fspath(name))


def count_lines(name: FileName) -> int:
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
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        number = line + content.count(b"\n", 0, error.start)
        fail_encoding(f"{name}:{number}", content, error)
    if "\0" in text:
        number = line + content.count(b"\n", 0, content.index(0))
        fail_nul(f"{name}:{number}")
    return text


def fail_encoding(where: str, content: bytes, error: UnicodeDecodeError) -> NoReturn:
    """Raise the FileError of bytes that are not UTF-8."""
    raise FileError(
        f"{where}: it is not UTF-8: {error.reason} 0x{content[error.start]:02x}; convert the file, "
        "as by iconv -f latin1 -t utf-8"
    )


def fail_nul(where: str) -> NoReturn:
    """Raise the FileError of a NUL."""
    raise FileError(f"{where}: it has a NUL, which no text has: it is damaged, or another encoding")


SIZE = 1 << 16  # bytes of a block
_BLOCK_PIECE = 1 << 20  # bytes skipped at once


class Block(NamedTuple):
    """Consecutive lines of a file.

    Attributes:
        lines: the lines in UTF-8 without line ends, including blank lines.
        starts: the offset in bytes at which each begins in the (decompressed) file: int64 [lines].
    """

    lines: list[bytes]
    starts: np.ndarray


class Blocks:
    """The lines of a file, in numbered blocks.

    Block n has the lines that begin in bytes n * size to (n + 1) * size of the (decompressed) file.
    So a block depends only on its number, and has no lines if a long line spans it. Consecutive
    blocks are read without seeking; other blocks need a seek, which in a compressed file reads
    everything before the block.

    Args:
        name: the name of the file.
        size: the bytes of a block.
    """

    def __init__(self, name: str | os.PathLike[str], *, size: int = SIZE):
        self._name, self._size = os.fspath(name), size
        self._file: BinaryIO | None = None
        self._at = 0  # the position in the file in bytes: the beginning of a line
        self._next = 0  # the number of the next block to read from there
        self._kept: tuple[int, Block | None] = (-1, None)

    def read(self, number: int) -> Block | None:
        """Return a block; None after the end of the file.

        Raises:
            FileError: the file cannot be read, is damaged, or has a line that is not UTF-8.
        """
        if self._kept[0] != number:
            try:
                self._kept = number, self._read(number)
            except OSError as error:
                raise FileError(f"{self._name}: it cannot be read: {error}") from error
        return self._kept[1]

    def close(self) -> None:
        """Close the file; reading opens it again."""
        if self._file is not None:
            self._file.close()
        self._file, self._kept = None, (-1, None)

    def _read(self, number: int) -> Block | None:
        file = self._opened(number)
        self._next = number + 1
        begin, size = self._at, self._next * self._size - self._at
        if size <= 0:
            return Block([], np.zeros(0, np.int64))
        content = file.read(size)
        if not content:
            return None
        if not content.endswith(b"\n"):
            content += file.readline()
        self._at += len(content)
        if not begin:
            content = without_mark(content, self._name)
            begin = self._at - len(content)
        self._check(content, begin)
        return _split(content, begin)

    def _opened(self, number: int) -> BinaryIO:
        """Return the file, positioned at the first line that begins in or after a block."""
        if self._file is not None and number == self._next:
            return self._file
        self.close()
        self._file = file = open_bytes(self._name)
        self._at = max(0, number * self._size - 1)
        if file.seekable():
            file.seek(self._at)
        else:
            _skip(file, self._at)
        if self._at:  # the line break before may be the last byte of the previous block
            self._at += len(file.readline())
        return file

    def _check(self, content: bytes, begin: int) -> None:
        try:
            content.decode("utf-8")
        except UnicodeDecodeError as error:
            fail_encoding(line_at(self._name, begin + error.start), content, error)
        if 0 in content:
            fail_nul(line_at(self._name, begin + content.index(0)))


def line_at(name: str, byte: int) -> str:
    """Return "FILE:LINE" for a byte offset in a file; the file is read up to there."""
    number = 1
    with open_bytes(name) as file:
        while byte > 0 and (piece := file.read(min(byte, _BLOCK_PIECE))):
            number, byte = number + piece.count(b"\n"), byte - len(piece)
    return f"{name}:{number}"


def _split(content: bytes, begin: int) -> Block:
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    ends = np.flatnonzero(np.frombuffer(content, np.uint8) == ord("\n"))
    starts = np.concatenate([np.zeros(1, np.int64), ends + 1])[: len(lines)] + begin
    if b"\r" in content:
        lines = [line.removesuffix(b"\r") for line in lines]
    return Block(lines, starts)


def _skip(file: BinaryIO, size: int) -> None:
    while size > 0 and (piece := file.read(min(size, _BLOCK_PIECE))):
        size -= len(piece)
