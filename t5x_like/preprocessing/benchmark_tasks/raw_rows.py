"""Read the raw rows of a benchmark: JSON Lines in a user's folder, or data prepared by tfds."""

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t5x_like.names import choose, hint
from t5x_like.preprocessing.benchmark_tasks.benchmark import Benchmark, Raw
from t5x_like.preprocessing.sources import SPLITS, PreparedSource

_PART = re.compile(r"(\w+)(?:\[(\d*):(\d*)\])?")


def checked_splits(splits: Mapping[str, str]) -> dict[str, str]:
    """Check and return a user's setting of splits, {"train" or "validation": part of a file}.

    Raises:
        ValueError: a name is another, or a part is not written as "train" or "train[:90]".
    """
    for split, part in splits.items():
        choose("data.settings.splits", split, dict.fromkeys(SPLITS))
        if not isinstance(part, str) or not _PART.fullmatch(part):
            raise ValueError(
                f"data.settings.splits.{split}={part!r} must be the name of a file without its "
                'ending, or rows of it: "train", "train[:90]", "train[90:]"'
            )
    return dict(splits)


def file_of(task: str, part: str, *, folder: str) -> str:
    """Return the file of a split in the user's folder: FOLDER/TASK/SPLIT.jsonl.

    Args:
        task: the folder of the task.
        part: "train", or "train[:90]".
        folder: the user's folder.

    Raises:
        ValueError: the folder or file does not exist; the message has the nearest name.
    """
    folder = os.path.expanduser(folder)
    parents = ((folder, os.path.dirname(folder) or "."), (os.path.join(folder, task), folder))
    for path, parent in parents:
        if not tf.io.gfile.isdir(path):
            near = hint(os.path.basename(path), _listed(parent))
            raise ValueError(f"data.settings.folder={folder!r}: {path} is not a folder.{near}")
    name = f"{_parsed(part)[0]}.jsonl"
    path = os.path.join(folder, task, name)
    if not tf.io.gfile.exists(path):
        near = hint(name, _listed(os.path.dirname(path)))
        raise ValueError(f"data.settings.folder={folder!r}: there is no file {path}.{near}")
    return path


def part_of(rows: Iterable[tuple[str, Raw]], part: str) -> Iterator[tuple[str, Raw]]:
    """Return the rows of a file that "train", "train[:90]" or "train[90:]" selects."""
    _, first, last = _parsed(part)
    return itertools.islice(rows, first, last)


def of_prepared(
    benchmark: Benchmark, *, task: str, part: str, data_dir: str | None
) -> Iterator[tuple[str, Raw]]:
    """Yield (location, row) of prepared TensorFlow Datasets, in the schema of the files.

    Raises:
        ValueError: the data set is not prepared, or tfds does not have it.
    """
    if not benchmark.prepared:
        raise ValueError(
            f"data.settings.folder is not set, and {task} is not read from TensorFlow Datasets: "
            "set it to a folder of JSON Lines"
        )
    name = _parsed(part)[0]
    source = PreparedSource(
        benchmark.prepared,
        splits={name: name},
        data_dir=data_dir,
        advice="or set data.settings.folder to a folder of JSON Lines.",
    )
    dataset = source.get_dataset(name, shuffle=False)
    for number, row in enumerate(dataset.as_numpy_iterator()):
        raw = _plain(row)
        for converted in benchmark.from_prepared(raw) if benchmark.from_prepared else [raw]:
            yield f"{benchmark.prepared} {name}, row {number}", converted


def _parsed(part: str) -> tuple[str, int | None, int | None]:
    """Return the name of a file, its first row, and the end of its rows; None if unlimited."""
    match = _PART.fullmatch(part)
    assert match, part
    first, last = (int(number) if number else None for number in match.group(2, 3))
    return match[1], first, last


def _listed(folder: str) -> list[str]:
    entries = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    return [name.rstrip("/") for name in entries]


def _plain(value: Any) -> Any:
    """Convert a row of TensorFlow Datasets to JSON types."""
    if isinstance(value, dict):
        return {name: _plain(field) for name, field in value.items()}
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, tf.RaggedTensor):
        return _plain(value.to_list())
    if isinstance(value, np.ndarray | list):
        return [_plain(element) for element in value]
    return value.item() if isinstance(value, np.generic) else value
