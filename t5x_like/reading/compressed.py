"""Open files that may be compressed: the ending of the name decides; the content must match it."""

import bz2
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, cast

from t5x_like import paths
from t5x_like.names import hint

_PIECE = 1 << 18  # compressed bytes read at once
_BUFFER = 1 << 18  # bytes of text buffered for small reads


class FileError(ValueError):
    """A file is damaged or has another format; the message begins with FILE or FILE:LINE."""


class _Compression(NamedTuple):
    """A compression format.

    Attributes:
        name: its name in error messages.
        beginnings: the possible first bytes of such a file.
        member: makes a decompressor of one member, with the standard library's interface; None for
            zstandard.
        write: opens a file to write.
    """

    name: str
    beginnings: tuple[bytes, ...]
    member: Callable[[], Any] | None
    write: Callable[[str], Any]


def _write_gzip(name: str) -> Any:
    # Without a timestamp, so that equal rows give equal files.
    return gzip.GzipFile(name, "wb", mtime=0)


def _write_bzip2(name: str) -> Any:
    return bz2.BZ2File(name, "wb")


def _write_xz(name: str) -> Any:
    return lzma.LZMAFile(name, "wb")


def _write_zstandard(name: str) -> Any:
    import pyarrow  # not needed for files that are not compressed

    return pyarrow.CompressedOutputStream(name, "zstd")


# A skippable frame, such as pzstd writes, may come before the first frame of a .zst.
_SKIPPABLE = tuple(bytes([0x50 + n, 0x2A, 0x4D, 0x18]) for n in range(16))
_KINDS: Mapping[str, _Compression] = {
    ".gz": _Compression("gzip", (b"\x1f\x8b",), lambda: zlib.decompressobj(31), _write_gzip),
    ".bz2": _Compression("bzip2", (b"BZh",), bz2.BZ2Decompressor, _write_bzip2),
    ".xz": _Compression(
        "xz",
        (b"\xfd7zXZ\0",),
        lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ),
        _write_xz,
    ),
    ".zst": _Compression("zstandard", (b"\x28\xb5\x2f\xfd", *_SKIPPABLE), None, _write_zstandard),
}
_LONGEST = 6  # bytes of the longest beginning
# The beginnings that a text cannot have; a text may begin with "BZh".
_NO_TEXT = {".gz": b"\x1f\x8b", ".xz": b"\xfd7zXZ\0", ".zst": b"\x28\xb5\x2f\xfd"}


def open_bytes(name: str | os.PathLike[str]) -> BinaryIO:
    """Open a file on this machine or in a bucket for reading its decompressed content.

    Raises:
        FileError: its compression does not match its name; while reading: it is damaged or
            truncated.
        OSError: it cannot be read.
    """
    shown = os.fspath(name)
    file = cast(BinaryIO, paths.path(name).open("rb"))
    kind = _KINDS.get(_ending(shown))
    beginning = file.read(_LONGEST)
    file.seek(0)
    if kind is None:
        for ending, first in _NO_TEXT.items():
            if beginning.startswith(first):
                file.close()
                raise FileError(
                    f"{shown}: it is compressed by {_KINDS[ending].name}: its name must end in "
                    f"{ending}"
                )
        return file
    if not beginning.startswith(kind.beginnings):
        file.close()
        problem = "it does not begin as" if beginning else "it is empty, and not"
        raise FileError(f"{shown}: {problem} a file compressed by {kind.name}")
    pieces = _members(file, kind.member) if kind.member else _zstandard(file)
    return cast(BinaryIO, io.BufferedReader(_Decompressed(file, pieces, shown), _BUFFER))


def create(name: str) -> BinaryIO:
    """Open a file on this machine to write, compressed according to its ending.

    Raises:
        OSError: it cannot be written.
    """
    kind = _KINDS.get(_ending(name))
    return cast(BinaryIO, kind.write(name) if kind else open(name, "wb"))


def uncompressed(name: str | os.PathLike[str]) -> str:
    """Return a name in lower case without the ending of a compression, to show its format.

    "a/Rows.JSONL.gz" becomes "a/rows.jsonl".
    """
    text = os.fspath(name).lower()
    return text.removesuffix(_ending(text))


def is_compressed(name: str | os.PathLike[str]) -> bool:
    """Return whether the ending of a name is a compression's."""
    return bool(_ending(os.fspath(name)))


def with_endings(endings: Sequence[str]) -> tuple[str, ...]:
    """Return endings of formats, without and with compression: .jsonl, .jsonl.gz, ..."""
    return tuple(ending + packed for ending in endings for packed in ("", *_KINDS))


def existing_file(setting: str, name: str, endings: Sequence[str]) -> str:
    """Return the path of a file that a setting names; ~ is the user's home folder.

    Args:
        setting: the name of the setting, for the message.
        name: the path.
        endings: the endings of the files that the message may name.

    Raises:
        ValueError: it is empty, or not a file; the message has the nearest name.
    """
    if not name:
        raise ValueError(f"{setting} is not set: name a file")
    file = paths.path(name)
    if file.is_file():
        return os.fspath(file)
    names = [sibling.name for sibling in file.parent.iterdir()] if file.parent.is_dir() else []
    near = hint(file.name, [sibling for sibling in names if sibling.endswith(tuple(endings))])
    raise ValueError(f"{setting}={name!r} is not a file.{near}")


def _ending(name: str) -> str:
    ending = os.path.splitext(name)[1].lower()
    return ending if ending in _KINDS else ""


class _Decompressed(io.RawIOBase):
    """The content of a compressed file, from an iterator of decompressed pieces."""

    def __init__(self, file: BinaryIO, pieces: Iterator[bytes], name: str):
        self._file, self._pieces, self._name = file, pieces, name
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            try:
                self._left = memoryview(next(self._pieces))
            except StopIteration:
                return 0
            except EOFError as error:
                raise FileError(f"{self._name}: the compressed file ends in its middle") from error
            except (zlib.error, lzma.LZMAError, OSError) as error:
                raise FileError(f"{self._name}: the compressed file is damaged: {error}") from error
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def _members(file: BinaryIO, make: Callable[[], Any]) -> Iterator[bytes]:
    """Yield the decompressed pieces of all members of a file.

    Python's readers ignore data after a member that is not another member, so they would lose the
    rows of a damaged second member. Zeros after a member are padding, as on tapes and in xz files.

    Raises:
        EOFError: the last member is truncated.
    """
    member, packed = make(), b""
    while packed := packed or file.read(_PIECE):
        if member is None:
            packed = packed.lstrip(b"\0")
            member = make() if packed else None
        if member is not None:
            yield member.decompress(packed)
            packed, member = (member.unused_data, None) if member.eof else (b"", member)
    if member is not None:
        raise EOFError


def _zstandard(file: BinaryIO) -> Iterator[bytes]:
    """Yield the decompressed pieces of all frames of a file."""
    import pyarrow  # not needed for files that are not compressed

    with pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd") as stream:
        while piece := stream.read(_PIECE):
            yield piece
