"""Paths of files and folders: on this machine, or in a bucket of Cloud Storage (gs://BUCKET/...).

A bucket has objects, not files: one is written whole or not at all, none can be added to, and a
folder is what names have in common. What differs for that reason is here.
"""

import contextlib
import hashlib
import importlib.util
import io
import os
import pathlib
import tempfile
import threading
import uuid
from collections.abc import Iterator
from typing import Any, cast

from etils import epath
from etils.epath import backend

Path = pathlib.Path  # or `epath.Path`, which has the same methods for a bucket
PREFIX = "gs://"

_LIBRARIES = ("gcsfs", "google", "aiohttp", "requests")  # their errors have no common class

_PIECE = 1 << 22  # bytes read at once
_ENDS = 1 << 16  # bytes of the beginning and of the end of a file that are hashed
# Seconds between two uploads of a file that grows: Cloud Storage takes one a second of an object.
_EVERY = 30.0


def path(name: str | os.PathLike[str]) -> Path:
    """The path with a name; ~ is the user's folder.

    Raises:
        ValueError: it is in a bucket, and the library that reads buckets is not installed; or it is
            an address of another kind.
    """
    text = os.fspath(name)
    if not text.startswith(PREFIX):
        if "://" in text:
            raise ValueError(f"{text!r} must be a path of this machine, or begin with {PREFIX}")
        return pathlib.Path(text).expanduser()
    if importlib.util.find_spec("gcsfs") is None:
        raise ValueError(f"{text!r} needs gcsfs: pip install 't5x_like[gcs]'")
    if not text.removeprefix(PREFIX).strip("/"):
        raise ValueError(f"{text!r} has no bucket: {PREFIX}BUCKET/PATH")
    _bucket_files()
    return cast(Path, epath.Path(text))


def cache(name: str) -> pathlib.Path:
    """The folder of this machine for what may be made again; it need not exist.

    It is $T5X_LIKE_CACHE/NAME, by default ~/.cache/t5x_like/NAME ($XDG_CACHE_HOME for ~/.cache).
    """
    user = os.environ.get("XDG_CACHE_HOME") or pathlib.Path("~/.cache").expanduser()
    return pathlib.Path(os.environ.get("T5X_LIKE_CACHE") or pathlib.Path(user, "t5x_like"), name)


def absolute(name: str | os.PathLike[str]) -> epath.Path:
    """The absolute path, of the type that Orbax takes; one in a bucket is."""
    return epath.Path(name) if in_bucket(name) else epath.Path(name).absolute()


def in_bucket(name: str | os.PathLike[str]) -> bool:
    """Whether a path is in a bucket."""
    return os.fspath(name).startswith(PREFIX)


def check_bucket(setting: str, name: str | os.PathLike[str]) -> None:
    """Check that the bucket of a path exists and may be read, by one request.

    Raises:
        ValueError: it does not, may not or cannot be reached, or the path is none of a bucket.
    """
    given = f"{setting}={os.fspath(name)!r}"
    try:
        bucket = os.fspath(path(name)).removeprefix(PREFIX).partition("/")[0]
    except ValueError as error:
        raise ValueError(f"{setting}={error}") from None
    try:
        _bucket_files().call("GET", "b/{}/o", bucket, maxResults=1, json_out=True)
    except FileNotFoundError:
        raise ValueError(
            f"{given}: there is no bucket {bucket!r}: create it, or give another"
        ) from None
    except Exception as error:  # of _LIBRARIES
        raise ValueError(f"{given}: {explain(error)}") from error


def explain(error: BaseException) -> str:
    """The error of a request to a bucket, and what can be done, in one line."""
    found = " ".join(str(error).split()) or type(error).__name__
    if "Forbidden" in found or getattr(error, "code", None) in (401, 403):
        return (
            f"the account may not do this in the bucket: give it the role Storage Object User "
            f"({found[:200]})"
        )
    if "credentials" in found.lower():
        return f"no credentials: gcloud auth application-default login ({found[:200]})"
    return found[:300]


@contextlib.contextmanager
def requests(place: str | os.PathLike[str]) -> Iterator[None]:
    """Name a place in errors of the library that reads buckets, as OSErrors, which files have.

    Raises:
        OSError: a request failed.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except Exception as error:
        by = type(error).__module__.partition(".")[0]
        if in_bucket(place) and (isinstance(error, OSError) or by in _LIBRARIES):
            raise OSError(f"{os.fspath(place)}: {explain(error)}") from error
        raise


def write_whole(file: Path | epath.Path, content: str | bytes) -> None:
    """Write a file of which a kill leaves the old content or the new one.

    Raises:
        OSError: it cannot be written.
    """
    content = content.encode() if isinstance(content, str) else content
    if in_bucket(file):
        with requests(file):
            file.write_bytes(content)
        return
    # Containers on several machines may have the same number of a process.
    unfinished = file.with_suffix(f".{uuid.uuid4().hex}.unfinished")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(file)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def create(file: Path, content: str) -> bool:
    """Write a file unless it exists, and return whether it did not; of several writers one does.

    In a bucket it is a write on the condition that there is no object (generation 0).

    Raises:
        OSError: it cannot be written.
    """
    try:
        if in_bucket(file):
            with requests(file):
                _bucket_files().pipe_file(os.fspath(file), content.encode(), mode="create")
        else:
            with file.open("x") as opened:
                opened.write(content)
    except FileExistsError:
        return False
    return True


def names_below(folder: epath.Path) -> list[str]:
    """The names of all files in a folder and those in it, relative to it."""
    if in_bucket(folder):
        start = os.fspath(folder).removeprefix(PREFIX).rstrip("/") + "/"
        return [name.removeprefix(start) for name in _bucket_files().find(os.fspath(folder))]
    return [
        str((epath.Path(root) / name).relative_to(folder))
        for root, _, files in folder.walk()
        for name in files
    ]


def matches(pattern: str) -> list[str]:
    """The files and folders that a pattern of a bucket matches (`*`, `?`, `[a-z]`)."""
    with requests(pattern):
        found = _bucket_files().glob(os.fspath(path(pattern)))
    return [PREFIX + name for name in found]


def local_copy(name: str) -> str:
    """A file of this machine with the content of an object, for readers that need one.

    Copies are kept in ~/.cache/t5x_like/objects ($T5X_LIKE_CACHE), under a name that changes with
    the object's content, and are not deleted.

    Raises:
        OSError: it cannot be read, or not be written here.
    """
    with requests(name):
        about = _bucket_files().info(name)
        version = f"{name} {about.get('generation', '')} {about.get('etag', '')} {about['size']}"
        key = hashlib.sha256(version.encode()).hexdigest()[:24]
        copy = cache("objects") / f"{key}{pathlib.PurePosixPath(name).suffix}"
        if copy.exists():
            return str(copy)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=copy.parent) as unfinished:
            with path(name).open("rb") as source:
                while piece := source.read(_PIECE):
                    unfinished.write(piece)
            unfinished.flush()
            with contextlib.suppress(FileExistsError):  # another process was as quick
                os.link(unfinished.name, copy)
    return str(copy)


def fingerprint(name: str | os.PathLike[str]) -> list[Any] | None:
    """The size of a file, its time of modification, and a hash of its beginning and end.

    Returns:
        [bytes, seconds, 16 hexadecimal digits], as JSON has them; None for a folder, or where there
        is nothing that can be read.
    """
    try:
        stat = epath.Path(name).stat()
        if stat.is_directory:
            return None
        with epath.Path(name).open("rb") as file:
            ends = hashlib.sha256(file.read(_ENDS))
            file.seek(max(0, stat.length - _ENDS))
            ends.update(file.read(_ENDS))
    except OSError:
        return None
    return [stat.length, stat.mtime, ends.hexdigest()[:16]]


class Growing(io.RawIOBase):
    """A file of a bucket that grows: what it has so far is in memory, and is uploaded whole.

    `flush` uploads it, and a thread does every 30 seconds: a kill loses what was written since.

    Args:
        file: its present content stays, and what is written follows it.
    """

    def __init__(self, file: Path):
        self._file = file
        self._content = bytearray(file.read_bytes() if file.exists() else b"")
        self._uploaded = len(self._content)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._upload_often, daemon=True, name="upload")
        self._thread.start()

    def writable(self) -> bool:
        """Whether it can be written: yes."""
        return True

    def write(self, content: Any) -> int:
        """Add bytes at the end."""
        with self._lock:
            self._content += content
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """The size: the place of the next write is always the end."""
        return len(self._content)

    def truncate(self, size: int | None = None) -> int:
        """Cut what is not uploaded to a size."""
        with self._lock:
            del self._content[size:]
        return len(self._content)

    def flush(self) -> None:
        """Upload the content, if there is more than before.

        Raises:
            OSError: the bucket cannot be written.
        """
        with self._lock:
            content = bytes(self._content)
        if len(content) > self._uploaded:
            write_whole(self._file, content)
            self._uploaded = len(content)

    def close(self) -> None:
        """Upload what is left, and end the thread."""
        if not self.closed:
            self._ended.set()
            self._thread.join()
        super().close()  # flushes

    def _upload_often(self) -> None:
        while not self._ended.wait(_EVERY):
            with contextlib.suppress(OSError):  # the next may succeed; the last one must
                self.flush()


def open_to_append(file: Path) -> io.RawIOBase:
    """Open a file to write at its end, at once; in a bucket as `Growing`.

    Raises:
        OSError: it cannot be read or written.
    """
    if in_bucket(file):
        with requests(file):
            return Growing(file)
    return cast(io.RawIOBase, file.open("ab", buffering=0))


def _bucket_files() -> Any:
    """The file system of buckets, that of `epath`."""
    import fsspec.config  # not needed without buckets

    # A kept list of a folder would miss what other processes write.
    fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    return backend.fsspec_backend.fs(PREFIX)
