"""Sources of the rows of text files, by the rules of `reading`, and errors that name the file.

Documents, pairs, and two files side by side. tf.data streams them: a few lines of a text file are
in memory, or two row groups of Parquet files.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import seqio
import tensorflow as tf

from t5x_like import reading
from t5x_like.grain_pipeline.corpus import columns_of
from t5x_like.names import hint
from t5x_like.preprocessing import sources
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
    by_split: dict[str, list[str]] = {}
    for name in tasks:
        provider = seqio.get_mixture_or_task(name)
        for task in provider.tasks if isinstance(provider, seqio.Mixture) else [provider]:
            for split in SPLITS:
                files = getattr(task.source, "files", task.source.list_shards)
                # A source without files lists the split itself as its only shard.
                listed = files(split) if split in task.splits else ()
                by_split[f"{task.name}/{split}"] = [path for path in listed if path != split]
    known = {path for files in by_split.values() for path in files}
    named = (os.path.expanduser(text) for text in _texts(settings) if os.path.splitext(text)[1])
    return by_split | {"data.settings": [path for path in named if path not in known]}


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
        rows = None
        try:
            rows = reader.read(block)
        finally:
            if rows is None:  # the end, or an error
                reader.close()
        if rows is not None:
            self._keep(number, reader)
        return rows

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
        block_lines = _open_files.read(int(reader), file, int(block))
        return np.array(block_lines.lines, object), block_lines.starts

    def rows(block: tf.Tensor) -> tf.data.Dataset:
        loaded = tf.numpy_function(load, [reader, file, block], [tf.string, tf.int64])
        line, start = (tf.ensure_shape(array, [None]) for array in loaded)
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
        parsed_rows = []
        for line, file, start in zip(batch, files, starts, strict=True):
            text = line.decode()
            if reading.is_blank(text):
                continue
            try:
                parsed_rows.append([column.encode() for column in read(text)])
            except ValueError as error:
                where = reading.line_at(file.decode(), int(start))
                raise FileError(f"{where}: {error}") from error
        return [np.array([row[n] for row in parsed_rows], object) for n in range(columns)]

    inputs = [rows["line"], rows["file"], rows["start"]]
    parsed = tf.numpy_function(parse, inputs, [tf.string] * columns)
    return [tf.ensure_shape(text, [None]) for text in parsed]


def files_of(source: seqio.DataSource, split: str) -> Iterator[str]:
    """Yield the files that a source names, if any, in order."""
    yield from getattr(source, "files", source.list_shards)(split)


_UNREADABLE = (tf.errors.NotFoundError, tf.errors.PermissionDeniedError)
_PLACES = re.compile(r"\{\{.*?\}\}\s*|\s*\[Op:.*")  # of TensorFlow's functions


@contextlib.contextmanager
def file_errors(files: Iterable[str] = ()) -> Iterator[None]:
    """Turn TensorFlow's errors about files into a `FileError`.

    Args:
        files: TFRecord files, searched for a damaged file after an error.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if match := _ERROR.search(error.message):
            raise FileError(match[1]) from error
        if isinstance(error, tf.errors.DataLossError):
            problem = error.message.splitlines()[0]
            raise FileError(_damaged(files) or f"the data are damaged: {problem}") from error
        if isinstance(error, _UNREADABLE):
            [problem] = _PLACES.sub("", error.message).splitlines()[:1]
            raise FileError(f"a file of the data cannot be read: {problem}") from error
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


FilePatterns = str | Sequence[str]
FileColumns = Mapping[str, str]  # {feature, "text" or "inputs" and "targets": its column}

_ROWS = 64  # rows per call into Python
_BETWEEN = "\t"  # separates the paths of a unit of two files


def rows_of_files(
    *,
    files: FilePatterns,
    text: str | None = None,
    inputs: str | None = None,
    targets: str | None = None,
    validation_files: FilePatterns | None = None,
    held_out: float = 0.01,
    documents: int | None = None,
) -> sources.FileSource:
    """Check the settings against the files, and return the source of their rows.

    Args:
        files: path, pattern, or list of paths and patterns.
        text: column of the documents, "text" if not set; .txt files have no columns.
        inputs: column of the inputs of pairs, instead of `text`.
        targets: column of the targets of pairs.
        validation_files: like `files`; None to hold out a part of `files`.
        held_out: the share to hold out, from 0 to 1.
        documents: the number of training rows, for mixtures in proportion to size.

    Raises:
        ValueError: a file or column does not exist, files have several formats, or a setting is out
            of range. While reading, a damaged file or row is a `FileError`.
    """
    columns = columns_of(text=text, inputs=inputs, targets=targets)
    if not 0 <= held_out <= 1:
        raise ValueError(f"held_out={held_out!r} must be from 0 to 1.")
    paths = dict.fromkeys(sources.SPLITS, _expand("files", files))
    if validation_files:
        paths["validation"] = _expand("validation_files", validation_files)
    every_path = sorted({*paths["train"], *paths["validation"]})
    form = _form(every_path)
    for split, of_split in paths.items():
        if not any(tf.io.gfile.stat(path).length for path in of_split):
            raise ValueError(f"files: all of the split {split!r} are empty: {', '.join(of_split)}")
    for path in every_path:
        try:
            form.check(path, columns)
        except OSError as error:
            raise ValueError(f"files: {path} cannot be read: {error}") from error

    return sources.FileSource(
        list_units=lambda split: form.units(paths[split]),
        read=lambda unit: form.read(unit, columns),
        examples=_held_out_examples(
            lambda rows: form.parse(rows, columns), None if validation_files else held_out
        ),
        count=lambda split: documents if split == "train" else None,
        unit_files=form.files,
        cycle=form.cycle,
        version=form.version,
    )


def pairs_of_files(
    units: Mapping[str, Sequence[Sequence[str]]],
    take: Callable[[str], list[str]] | None,
    *,
    held_out: float | None,
) -> sources.FileSource:
    """Return the source of pairs {"inputs": string, "targets": string}.

    Args:
        units: {split: its units}, each a file with both sides of pairs, or a file for each side.
        take: the sides of a pair in a line; None if each side has a file.
        held_out: the share of the pairs to hold out; None if the splits have files of their own.
    """

    def parse(rows: Any) -> dict[str, tf.Tensor]:
        if take is None:
            return {"inputs": rows[:, 0], "targets": rows[:, 1]}
        inputs, targets = texts(rows, take, columns=2)
        return {"inputs": inputs, "targets": targets}

    return sources.FileSource(
        list_units=lambda split: [_BETWEEN.join(unit) for unit in units[split]],
        read=lines if take else _read_two,
        examples=_held_out_examples(parse, held_out),
        unit_files=lambda unit: unit.split(_BETWEEN),
        version=VERSION,
    )


def _read_two(unit: tf.Tensor) -> tf.data.Dataset:
    files = tf.strings.split(unit, _BETWEEN)
    pairs = tf.data.Dataset.zip(lines(files[0]), lines(files[1]))
    return pairs.map(lambda *pair: tf.stack([side["line"] for side in pair]))


def _held_out_examples(
    parse: Callable[[Any], dict[str, tf.Tensor]], held_out: float | None
) -> Callable[[tf.data.Dataset, str], tf.data.Dataset]:
    """Return the function (raw rows, split) -> the rows of the split.

    Args:
        parse: a batch of raw rows -> {field: strings [N]}.
        held_out: the share to hold out, by the first field; None for all rows.
    """

    def examples(rows: tf.data.Dataset, split: str) -> tf.data.Dataset:
        def choose(batch: Any) -> dict[str, tf.Tensor]:
            row = parse(batch)
            if held_out is None:
                return row
            # The inputs of a pair decide, so that a question is never in both splits.
            is_held_out = sources.held_out(next(iter(row.values())), fraction=held_out)
            mine = is_held_out == (split == "validation")
            return {name: tf.boolean_mask(text, mine) for name, text in row.items()}

        return rows.batch(_ROWS).map(choose, num_parallel_calls=tf.data.AUTOTUNE).unbatch()

    return examples


def _expand(setting: str, patterns: FilePatterns) -> list[str]:
    """Return the files that match, sorted and without duplicates."""
    files: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        path = os.path.expanduser(pattern)
        matches = [path] if tf.io.gfile.exists(path) else tf.io.gfile.glob(path)
        if any(tf.io.gfile.isdir(match) for match in matches):
            raise ValueError(f"{setting}={pattern!r} is a folder: name files, as {pattern}/*.jsonl")
        if not matches:
            folder = os.path.dirname(path) or "."
            siblings = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
            raise ValueError(
                f"{setting}={pattern!r} matches no file."
                + hint(os.path.basename(path), [f for f in siblings if _suffix(f)])
            )
        files.update(matches)
    if not files:
        raise ValueError(f"{setting}={patterns!r} is not set: give a file, a pattern or a list.")
    return sorted(files)


@dataclasses.dataclass(frozen=True)
class _Form:
    """How files of one format are read.

    Attributes:
        check: raises ValueError if a file lacks a column of strings.
        units: paths -> units, see `FileSource`.
        read: unit -> its raw rows.
        parse: a batch of raw rows -> {feature: strings [N]}.
        files: unit -> the files that it is read from.
        cycle: the number of units to interleave.
        version: see `FileSource`.
    """

    check: Callable[[str, FileColumns], None]
    units: Callable[[list[str]], list[str]]
    read: Callable[[tf.Tensor, FileColumns], tf.data.Dataset]
    parse: Callable[[Any, FileColumns], dict[str, tf.Tensor]]
    files: Callable[[str], Sequence[str]] = lambda unit: [unit]
    cycle: int = 16
    version: str = VERSION


def _suffix(path: str) -> str:
    """Return the ending that names a path's format, ".txt" of "a.txt.gz"; "" if unknown."""
    is_known = path.lower().endswith(ENDINGS)
    return os.path.splitext(reading.uncompressed(path))[1] if is_known else ""


def _form(paths: list[str]) -> _Form:
    forms = {}
    for path in paths:
        suffix = _suffix(path)
        if not suffix:
            raise ValueError(f"files: {path} has none of the suffixes {', '.join(ENDINGS)}.")
        forms[_FORMS[suffix]] = path
    if len(forms) > 1:
        raise ValueError(
            f"files: {' and '.join(forms.values())} differ in format: register a task for each "
            "format, under its own `name`, and mix the tasks."
        )
    return next(iter(forms))


def _read_lines(path: tf.Tensor, columns: FileColumns) -> tf.data.Dataset:
    del columns
    return lines(path)


def _check_lines(path: str, columns: FileColumns) -> None:
    if columns != {"text": "text"}:
        feature, column = next(iter(columns.items()))
        raise ValueError(f"{feature}={column!r}: {path} has lines, whose only column is 'text'.")
    next(reading.lines(path), None)


def _check_json(path: str, columns: FileColumns) -> None:
    """Check the first row."""
    for _, row in reading.json_lines(path):
        for feature, column in columns.items():
            fields = [field for field, value in row.items() if isinstance(value, str)]
            if column not in fields:
                raise ValueError(
                    f"{feature}={column!r}: {path} has no such column of strings."
                    + hint(column, fields)
                )
        return


def _parse_json(lines: Any, columns: FileColumns) -> dict[str, tf.Tensor]:
    read = functools.partial(_fields, columns=tuple(columns.values()))
    parsed = texts(lines, read, columns=len(columns))
    return dict(zip(columns, parsed, strict=True))


def _fields(line: str, *, columns: Sequence[str]) -> list[str]:
    row = reading.json_object(line)
    return [reading.field_text(row, column) for column in columns]


def _check_parquet(path: str, columns: FileColumns) -> None:
    table = reading.ParquetFile(path)
    for feature, column in columns.items():
        table.check(feature, column)


def _row_groups(paths: list[str]) -> list[str]:
    """Return all row groups, as "path#number"."""
    return [
        f"{path}#{group}" for path in paths for group in range(len(reading.ParquetFile(path).rows))
    ]


def _read_row_group(unit: tf.Tensor, columns: FileColumns) -> tf.data.Dataset:
    def load(unit: bytes) -> list[np.ndarray]:
        path, _, group = unit.decode().rpartition("#")
        texts = reading.ParquetFile(path).read(int(group), list(columns.values()))
        return [np.array([text.encode() for text in column], object) for column in texts]

    loaded = tf.numpy_function(load, [unit], [tf.string] * len(columns))
    rows = dict(zip(columns, (tf.ensure_shape(text, [None]) for text in loaded), strict=True))
    return tf.data.Dataset.from_tensor_slices(rows)


_LINES = _Form(
    check=_check_lines,
    units=list,
    read=_read_lines,
    parse=lambda lines, columns: {"text": lines["line"]},
)
_JSON = _Form(
    check=_check_json,
    units=list,
    read=_read_lines,
    parse=_parse_json,
)
_PARQUET = _Form(
    check=_check_parquet,
    units=_row_groups,
    read=_read_row_group,
    parse=lambda rows, columns: rows,
    files=lambda unit: [unit.rpartition("#")[0]],
    cycle=2,
    version="",
)
_FORMS = {".txt": _LINES, ".jsonl": _JSON, ".json": _JSON, ".parquet": _PARQUET}
ENDINGS = (*reading.with_endings((".txt", ".jsonl", ".json")), ".parquet")
