"""Read the lines of a file in blocks, in any order, for positions within large files."""

import os
from typing import BinaryIO, NamedTuple

import numpy as np

from t5x_like.reading.compressed import FileError, open_bytes
from t5x_like.reading.lines import fail_encoding, fail_nul, without_mark

SIZE = 1 << 16  # bytes of a block
_PIECE = 1 << 20  # bytes skipped at once


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
        while byte > 0 and (piece := file.read(min(byte, _PIECE))):
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
    while size > 0 and (piece := file.read(min(size, _PIECE))):
        size -= len(piece)
