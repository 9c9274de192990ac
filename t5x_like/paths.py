"""Paths of files and folders: on this machine, or in a bucket of Cloud Storage (gs://BUCKET/...).

A bucket has objects, not files: an object is written whole or not at all and cannot be appended to,
and a folder is only a common prefix of names. This module hides the differences.
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

_LIBRARIES = ("gcsfs", "google", "aiohttp", "requests")  # their errors share no base class

_PIECE = 1 << 22  # bytes read at once
_ENDS = 1 << 16  # bytes hashed at the beginning and at the end of a file
# Seconds between two uploads of a growing file: Cloud Storage allows one write a second per object.
_EVERY = 30.0


def path(name: str | os.PathLike[str]) -> Path:
    """Return the path with a name; ~ is the user's home folder.

    Raises:
        ValueError: the path is in a bucket and gcsfs is not installed, the bucket's name is
            missing, or it is a URL of another scheme.
    """
    text = os.fspath(name)
    if not text.startswith(PREFIX):
        if "://" in text:
            raise ValueError(f"{text!r} must be a path of this machine, or begin with {PREFIX}")
        return pathlib.Path(text).expanduser()
    if importlib.util.find_spec("gcsfs") is None:
        raise ValueError(
            f"{text!r} needs gcsfs: pip install 't5x_like[gcs]' (in a clone: pip install "
            "-e '.[gcs]')"
        )
    if not text.removeprefix(PREFIX).strip("/"):
        raise ValueError(f"{text!r} has no bucket: {PREFIX}BUCKET/PATH")
    _bucket_files()
    return cast(Path, epath.Path(text))


def cache(name: str) -> pathlib.Path:
    """Return a folder of this machine for files that can be made again; it need not exist.

    It is $T5X_LIKE_CACHE/NAME, by default ~/.cache/t5x_like/NAME ($XDG_CACHE_HOME replaces
    ~/.cache).
    """
    user = os.environ.get("XDG_CACHE_HOME") or pathlib.Path("~/.cache").expanduser()
    return pathlib.Path(os.environ.get("T5X_LIKE_CACHE") or pathlib.Path(user, "t5x_like"), name)


def absolute(name: str | os.PathLike[str]) -> epath.Path:
    """Return the absolute path, of the type that Orbax takes; paths in a bucket are absolute."""
    return epath.Path(name) if in_bucket(name) else epath.Path(name).absolute()


def in_bucket(name: str | os.PathLike[str]) -> bool:
    """Return whether a path is in a bucket."""
    return os.fspath(name).startswith(PREFIX)


def check_bucket(setting: str, name: str | os.PathLike[str]) -> None:
    """Check with one request that the bucket of a path exists and may be read.

    Raises:
        ValueError: it does not exist, may not be read or cannot be reached; see also `path`.
    """
    setting_and_value = f"{setting}={os.fspath(name)!r}"
    try:
        bucket = os.fspath(path(name)).removeprefix(PREFIX).partition("/")[0]
    except ValueError as error:
        raise ValueError(f"{setting}={error}") from None
    try:
        _bucket_files().call("GET", "b/{}/o", bucket, maxResults=1, json_out=True)
    except FileNotFoundError:
        raise ValueError(
            f"{setting_and_value}: there is no bucket {bucket!r}: create it, or give another"
        ) from None
    except Exception as error:  # raised by one of _LIBRARIES
        raise ValueError(f"{setting_and_value}: {explain(error)}") from error


def explain(error: BaseException) -> str:
    """Describe the error of a request to a bucket, and its remedy, in one line."""
    message = " ".join(str(error).split()) or type(error).__name__
    if "Forbidden" in message or getattr(error, "code", None) in (401, 403):
        return (
            f"the account may not do this in the bucket: give it the role Storage Object User "
            f"({message[:200]})"
        )
    if "credentials" in message.lower():
        return f"no credentials: gcloud auth application-default login ({message[:200]})"
    return message[:300]


@contextlib.contextmanager
def requests(name: str | os.PathLike[str]) -> Iterator[None]:
    """Re-raise errors of requests to a bucket as OSErrors, as for files, that name the path.

    Raises:
        OSError: a request failed.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except Exception as error:
        by = type(error).__module__.partition(".")[0]
        if in_bucket(name) and (isinstance(error, OSError) or by in _LIBRARIES):
            raise OSError(f"{os.fspath(name)}: {explain(error)}") from error
        raise


def write_whole(file: Path | epath.Path, content: str | bytes) -> None:
    """Write a file atomically: if the process is killed, it has the old or the new content.

    Raises:
        OSError: it cannot be written.
    """
    content = content.encode() if isinstance(content, str) else content
    if in_bucket(file):
        with requests(file):
            file.write_bytes(content)
        return
    # Not the process id: containers on several machines may have the same one.
    unfinished = file.with_suffix(f".{uuid.uuid4().hex}.unfinished")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(file)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def create(file: Path, content: str) -> bool:
    """Create a file, and return True, unless it exists; of several writers only one succeeds.

    In a bucket the write has the precondition that the object does not exist (generation 0).

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
    """Return the paths of all files in a folder and its subfolders, relative to it."""
    if in_bucket(folder):
        start = os.fspath(folder).removeprefix(PREFIX).rstrip("/") + "/"
        return [name.removeprefix(start) for name in _bucket_files().find(os.fspath(folder))]
    return [
        str((epath.Path(root) / name).relative_to(folder))
        for root, _, files in folder.walk()
        for name in files
    ]


def matches(pattern: str) -> list[str]:
    """Return the files and folders in a bucket that match a pattern (`*`, `?`, `[a-z]`)."""
    with requests(pattern):
        names = _bucket_files().glob(os.fspath(path(pattern)))
    return [PREFIX + name for name in names]


def local_copy(name: str) -> str:
    """Return a path for readers that need a file of this machine: an object of a bucket is copied.

    Copies are kept in ~/.cache/t5x_like/objects ($T5X_LIKE_CACHE), under a name that changes with
    the object's content, and are not deleted.

    Raises:
        OSError: the object cannot be read, or the copy cannot be written.
    """
    if not in_bucket(name):
        return name
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
    """Return the size of a file, its modification time, and a hash of its beginning and end.

    Returns:
        [bytes, seconds, 16 hexadecimal digits], which JSON can store; None for a folder, or if the
        file cannot be read.
    """
    try:
        if in_bucket(name):
            stat = epath.Path(name).stat()
            length, seconds, is_folder = stat.length, stat.mtime, stat.is_directory
        else:  # epath's fails if the user that owns the file is not known here, as in containers
            file_here = pathlib.Path(name).expanduser()
            status, is_folder = file_here.stat(), file_here.is_dir()
            length, seconds = status.st_size, int(status.st_mtime)
        if is_folder:
            return None
        with epath.Path(name).open("rb") as file:
            ends = hashlib.sha256(file.read(_ENDS))
            file.seek(max(0, length - _ENDS))
            ends.update(file.read(_ENDS))
    except OSError:
        return None
    return [length, seconds, ends.hexdigest()[:16]]


class Growing(io.RawIOBase):
    """A file in a bucket that grows: its content is kept in memory, and each upload is whole.

    `flush` uploads it, and so does a thread every 30 seconds: a kill loses what was written since.

    Args:
        file: the file; writes are appended to its present content.
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
        """Return True: the file can be written."""
        return True

    def write(self, content: Any) -> int:
        """Append bytes, and return their number."""
        with self._lock:
            self._content += content
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Return the size, whatever the offset: writes always append."""
        return len(self._content)

    def truncate(self, size: int | None = None) -> int:
        """Cut the content in memory to a size, and return it; what is uploaded stays."""
        with self._lock:
            del self._content[size:]
        return len(self._content)

    def flush(self) -> None:
        """Upload the content, if it has grown since the last upload.

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
            with contextlib.suppress(OSError):  # a later upload may succeed; `close` raises
                self.flush()


def open_to_append(file: Path) -> io.RawIOBase:
    """Open a file for unbuffered appending; in a bucket, return a `Growing` file.

    Raises:
        OSError: it cannot be read or written.
    """
    if in_bucket(file):
        with requests(file):
            return Growing(file)
    return cast(io.RawIOBase, file.open("ab", buffering=0))


def _bucket_files() -> Any:
    """Return the file system of buckets that `epath` uses."""
    import fsspec.config  # not needed without buckets

    # A cached listing would miss what other processes write.
    fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    return backend.fsspec_backend.fs(PREFIX)
