"""Datasets of the lines of text files, by the rules of `reading`, and errors that name the file."""

import collections
import contextlib
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import seqio
import tensorflow as tf

from t5x_like import reading
from t5x_like.preprocessing.sources import SPLITS
from t5x_like.reading import FileError


def paths(tasks: Iterable[str], settings: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the files of registered tasks and mixtures, in the order in which they are read.

    Args:
        tasks: names of the tasks and mixtures.
        settings: of the data module, which may name files that it reads into memory.

    Returns:
        {"TASK/SPLIT": files}; files need not exist, and a source that generates its examples has
        none. The key "data.settings" has the files in the settings that no source lists.
    """
    found: dict[str, list[str]] = {}
    for name in tasks:
        provider = seqio.get_mixture_or_task(name)
        for task in provider.tasks if isinstance(provider, seqio.Mixture) else [provider]:
            for split in SPLITS:
                files = getattr(task.source, "files", task.source.list_shards)
                # A source without files lists the split itself as its only shard.
                listed = files(split) if split in task.splits else ()
                found[f"{task.name}/{split}"] = [path for path in listed if path != split]
    known = {path for files in found.values() for path in files}
    named = (os.path.expanduser(text) for text in _texts(settings) if os.path.splitext(text)[1])
    return found | {"data.settings": [path for path in named if path not in known]}


def _texts(settings: Any) -> Iterator[str]:
    """Yield all strings in a tree of settings."""
    if isinstance(settings, str):
        yield settings
    elif isinstance(settings, Mapping):
        for value in settings.values():
            yield from _texts(value)
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from _texts(value)


T = TypeVar("T")

VERSION = "blocks-"  # version of the datasets, whose positions are states of tf.data
# Beyond this number of files, the oldest is closed and reopened when needed; a compressed file is
# then read again up to the position.
_MOST_OPEN = 512
_ERROR = re.compile(rf"{FileError.__name__}: (.*)")

LINES: Mapping[str, tf.TensorSpec] = {
    "line": tf.TensorSpec([], tf.string),
    "file": tf.TensorSpec([], tf.string),
    "start": tf.TensorSpec([], tf.int64),
}


class _OpenFiles:
    """The files that datasets are reading, by the number of the reader."""

    def __init__(self) -> None:
        self._numbers, self._lock = itertools.count(), threading.Lock()
        self._readers: collections.OrderedDict[int, reading.Blocks] = collections.OrderedDict()

    def new(self) -> int:
        """Return the number of a new reader, whose file is not yet open."""
        return next(self._numbers)

    def read(self, number: int, file: bytes, block: int) -> Any:
        """Read a block of a file; return None after its end."""
        with self._lock:
            reader = self._readers.pop(number, None) or reading.Blocks(file.decode())
        found = None
        try:
            found = reader.read(block)
        finally:
            if found is None:  # the end, or an error
                reader.close()
        if found is not None:
            self._keep(number, reader)
        return found

    def _keep(self, number: int, reader: reading.Blocks) -> None:
        with self._lock:
            self._readers[number] = reader
            is_full = len(self._readers) > _MOST_OPEN
            oldest = self._readers.popitem(last=False)[1] if is_full else None
        if oldest is not None:
            oldest.close()


_open_files = _OpenFiles()


# AutoGraph would convert the Python functions inside, making them several times slower.
@tf.autograph.experimental.do_not_convert
def lines(file: tf.Tensor) -> tf.data.Dataset:
    """Return the lines of a file without line endings, including blank lines.

    Args:
        file: the path, a scalar string.

    Returns:
        A dataset of scalars: "line"; "file", the path; "start", the byte at which the line begins.
    """
    reader = tf.numpy_function(lambda: np.int64(_open_files.new()), [], tf.int64)

    def exists(reader: np.int64, file: bytes, block: np.int64) -> np.bool_:
        return np.bool_(_open_files.read(int(reader), file, int(block)) is not None)

    def load(reader: np.int64, file: bytes, block: np.int64) -> tuple[np.ndarray, np.ndarray]:
        found = _open_files.read(int(reader), file, int(block))
        return np.array(found.lines, object), found.starts

    def rows(block: tf.Tensor) -> tf.data.Dataset:
        loaded = tf.numpy_function(load, [reader, file, block], [tf.string, tf.int64])
        line, start = (tf.ensure_shape(one, [None]) for one in loaded)
        names = tf.fill([tf.size(line)], file)
        return tf.data.Dataset.from_tensor_slices({"line": line, "file": names, "start": start})

    def is_block(block: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(exists, [reader, file, block], tf.bool), [])

    return tf.data.Dataset.counter().take_while(is_block).flat_map(rows)


@tf.autograph.experimental.do_not_convert
def texts(
    rows: Mapping[str, tf.Tensor], read: Callable[[str], Iterable[str]], *, columns: int
) -> list[tf.Tensor]:
    """Apply a function to each line that is not blank.

    Args:
        rows: [N] lines of `lines`.
        read: a line -> the texts of its columns; raises ValueError if the line lacks them.
        columns: the number of columns.

    Returns:
        The texts of each column, strings [M].
    """

    def parse(batch: np.ndarray, files: np.ndarray, starts: np.ndarray) -> list[np.ndarray]:
        found = []
        for line, file, start in zip(batch, files, starts, strict=True):
            text = line.decode()
            if reading.is_blank(text):
                continue
            try:
                found.append([one.encode() for one in read(text)])
            except ValueError as error:
                where = reading.line_at(file.decode(), int(start))
                raise FileError(f"{where}: {error}") from error
        return [np.array([row[n] for row in found], object) for n in range(columns)]

    given = [rows["line"], rows["file"], rows["start"]]
    parsed = tf.numpy_function(parse, given, [tf.string] * columns)
    return [tf.ensure_shape(text, [None]) for text in parsed]


def files_of(source: seqio.DataSource, split: str) -> Iterator[str]:
    """Yield the files that a source names, if any, in order."""
    yield from getattr(source, "files", source.list_shards)(split)


@contextlib.contextmanager
def file_errors(files: Iterable[str] = ()) -> Iterator[None]:
    """Turn TensorFlow's errors about files into a `FileError`.

    Args:
        files: TFRecord files, searched for a damaged file after an error.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if found := _ERROR.search(error.message):
            raise FileError(found[1]) from error
        if isinstance(error, tf.errors.DataLossError):
            problem = error.message.splitlines()[0]
            raise FileError(_damaged(files) or f"the data are damaged: {problem}") from error
        raise


def named(rows: Iterable[T], files: Iterable[str] = ()) -> Iterator[T]:
    """Yield the elements of a dataset, read within `file_errors`."""
    with file_errors(files):
        yield from rows


def _damaged(files: Iterable[str]) -> str:
    """Return the message about the first damaged file; "" if no file is damaged."""
    for file in files:
        records = 0
        try:
            for _ in tf.data.TFRecordDataset(file):
                records += 1
        except tf.errors.DataLossError:
            return f"{file}: it is damaged after {records:,} records: copy it again"
        except tf.errors.OpError:  # a split that is not a file
            continue
    return ""
