"""seqio's offline cache of tasks: the identity of their examples, and tasks that read it.

For each task a folder has what `seqio.Task.get_dataset(use_cached=True)` reads: the examples before
`seqio.CacheDatasetPlaceholder` in TASK/SPLIT.tfrecord-00000-of-00003, their features in
TASK/info.SPLIT.json, their number in TASK/stats.SPLIT.json. Everything that is random or depends on
lengths comes after the placeholder.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from t5x_like import paths
from t5x_like.batches.tokenized_folder import TokenizedFolder
from t5x_like.preprocessing import line_datasets, sources, tracing
from t5x_like.preprocessing.sources import ColumnSource, TensorColumns
from t5x_like.vocabularies import Vocabulary

FORMAT = "seqio 1"  # version of the rules of cleaning and of the order: raise it if they change

CachedFeatures = Mapping[
    str, Mapping[str, Any]
]  # {name: {"shape", "dtype"}}, as in info.SPLIT.json


@dataclasses.dataclass(frozen=True)
class Origin:
    """The settings of a config that decide the examples of all tasks.

    Attributes:
        vocabulary: the vocabulary of the tokens.
        settings: settings of the data module.
        objective: the name of the objective.
        objective_settings: its settings.
    """

    vocabulary: Vocabulary
    settings: Mapping[str, Any]
    objective: str
    objective_settings: Mapping[str, Any]

    def identity(self, splits: Iterable[tuple[seqio.Task, str]]) -> dict[str, Any]:
        """Return everything that decides the examples of tasks and splits, as JSON has it.

        Raises:
            ValueError: a task has no cache placeholder.
        """
        identity = {
            "format": FORMAT,
            "vocabulary": self.vocabulary.digest,
            "splits": {f"{task.name}/{split}": self._split(task, split) for task, split in splits},
        }
        return json.loads(json.dumps(identity, default=repr))

    def _split(self, task: seqio.Task, split: str) -> dict[str, Any]:
        listed = line_datasets.paths([task.name], self.settings)
        files = listed.get(f"{task.name}/{split}", [])
        fingerprints = map(paths.fingerprint, [*files, *listed["data.settings"]])
        source = getattr(task.source, "tfds_dataset", None)
        return {
            "source": source.name if source else type(task.source).__name__,
            "preprocessors": [self._step(step) for step in before_cache(task, self.objective)],
            "files": [fp and [fp[0], fp[2]] for fp in fingerprints],  # without the time
            "rows": "" if files else _digest(task.source, split),
            **{f"data.settings.{name}": _no_paths(value) for name, value in self.settings.items()},
        }

    def _step(self, step: Any) -> str:
        """Describe a preprocessor by name, settings, and the objective if it may depend on it."""
        arguments = ""
        while isinstance(step, functools.partial):
            arguments, step = f"{arguments} {step.args} {sorted(step.keywords.items())}", step.func
        name = f"{step.__module__}.{getattr(step, '__qualname__', type(step).__qualname__)}"
        if "<locals>" in name:
            settings = sorted(self.objective_settings.items())
            arguments += f" {self.objective} {settings}"
        name = _STORED.get(name, name)
        if not tracing.is_known(step):  # a user's, who may edit it
            arguments += f" {hashlib.sha256(inspect.getsource(step).encode()).hexdigest()[:16]}"
        return name + arguments


# The names of preprocessors in the folders of earlier versions, which had them in other modules.
_NOW = "t5x_like.preprocessing.seqio_objectives"
_BEFORE = "t5x_like.preprocessing.objectives"
_STORED = {
    f"{_NOW}.tokenize_documents": f"{_BEFORE}.running_text.chunking.tokenize",
    f"{_NOW}.tokenize_sentences": f"{_BEFORE}.masked.sentences.tokenize",
}


class OfflineCache:
    """A folder that `t5x-like tokenize` wrote for tasks of seqio.

    Args:
        folder: `data.tokenized`.
        origin: what its examples must have been made from.

    Raises:
        ValueError: it is not such a folder, or is unfinished.
    """

    def __init__(self, folder: str, origin: Origin):
        self._folder, self._origin = TokenizedFolder(folder), origin

    def task(self, task: seqio.Task, *, split: str) -> seqio.Task:
        """Replace a task's source by the cached examples; keep the preprocessors after the cache.

        The source can be divided into any number of shards; rows of a task in memory are shuffled
        all at once, as in a `ColumnSource`.

        Args:
            task: a registered task.
            split: the split to read.

        Raises:
            ValueError: the folder was made from something else, lacks the split or is damaged.
        """
        identity = self._origin.identity([(task, split)])
        files = self._folder.files(f"{task.name}/{split}", identity)
        features = read_features(seqio.get_cached_info_path(os.path.dirname(files[0]), split))
        make_source = _in_memory if isinstance(task.source, ColumnSource) else _from_files
        after = len(before_cache(task, self._origin.objective)) + 1
        return task.replace(
            source=make_source(files, functools.partial(parse, features=features), split),
            preprocessors=task.preprocessors[after:],
        )


def before_cache(task: seqio.Task, objective: str) -> Sequence[Any]:
    """Return the preprocessors of a task before its cache.

    Args:
        objective: the name of the objective, for the message.

    Raises:
        ValueError: the task has no cache placeholder.
    """
    steps = list(task.preprocessors)
    for number, step in enumerate(steps):
        if isinstance(step, seqio.CacheDatasetPlaceholder):
            return steps[:number]
    raise ValueError(
        f"the task {task.name!r} with data.objective={objective!r} cannot be tokenized beforehand: "
        "its preprocessors have no seqio.CacheDatasetPlaceholder(), as where one of them both "
        "tokenizes and truncates; set data.tokenized=''"
    )


def features_of(dataset: tf.data.Dataset, *, task: str) -> CachedFeatures:
    """Return the features of examples, as info.SPLIT.json has them.

    Raises:
        ValueError: a feature is neither a scalar nor a sequence.
    """
    features = {}
    for name, spec in dataset.element_spec.items():
        if spec.shape.rank not in (0, 1):
            raise ValueError(
                f"the task {task!r} cannot be tokenized beforehand: its feature {name!r} has "
                f"{spec.shape.rank} axes, and the cache has scalars and sequences"
            )
        features[name] = {"shape": [None] * spec.shape.rank, "dtype": spec.dtype.name}
    return features


def read_features(info: str) -> CachedFeatures:
    """Read the features in a file info.SPLIT.json; raise ValueError if it cannot be read."""
    try:
        return json.loads(pathlib.Path(info).read_text())["features"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"data.tokenized is damaged: {info} cannot be read: {problem}: copy the folder again, "
            "or delete it and make it by t5x-like tokenize"
        ) from error


def parse(record: tf.Tensor, *, features: CachedFeatures) -> dict[str, tf.Tensor]:
    """Parse the features of an example from a serialized `tf.train.Example`."""
    types = {name: tf.as_dtype(feature["dtype"]) for name, feature in features.items()}
    specification: dict[str, Any] = {}
    for name, feature in features.items():
        # An Example has strings, int64 and float32.
        stored = tf.float32 if types[name].is_floating else tf.int64
        stored = tf.string if types[name] == tf.string else stored
        specification[name] = (
            tf.io.FixedLenSequenceFeature([], stored, allow_missing=True)
            if feature["shape"]
            else tf.io.FixedLenFeature([], stored)
        )
    example = tf.io.parse_single_example(record, specification)
    return {name: tf.cast(value, types[name]) for name, value in example.items()}


ParseExample = Callable[[tf.Tensor], dict[str, tf.Tensor]]


def _from_files(files: Sequence[str], parse: ParseExample, split: str) -> seqio.DataSource:
    return sources.FileSource(
        list_units=lambda split: files,
        read=tf.data.TFRecordDataset,
        examples=lambda rows, split: rows.map(parse, num_parallel_calls=tf.data.AUTOTUNE),
        splits=(split,),
    )


def _in_memory(files: Sequence[str], parse: ParseExample, split: str) -> seqio.DataSource:
    def columns(split: str) -> TensorColumns:
        del split
        rows = tf.data.TFRecordDataset(files).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        with line_datasets.file_errors(files):
            number = rows.reduce(tf.constant(0, tf.int64), lambda total, row: total + 1)
            return rows.ragged_batch(number).get_single_element()

    return ColumnSource(columns, splits=(split,))


def _digest(source: seqio.DataSource, split: str) -> str:
    """Return a hash of the rows of a source that has no files."""
    digest = hashlib.sha256()
    for block in source.get_dataset(split, shuffle=False).ragged_batch(1024):
        block = block if isinstance(block, Mapping) else {"": block}  # lines of text
        for name in sorted(block):
            column = block[name]
            ragged = isinstance(column, tf.RaggedTensor)
            values = column.to_list() if ragged else column.numpy().tolist()
            digest.update(repr((name, values)).encode())
    return digest.hexdigest()[:16]


def _no_paths(value: Any) -> Any:
    """Replace existing paths in a setting, since the same files may be in another folder."""
    if isinstance(value, Mapping):
        return {name: _no_paths(element) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [_no_paths(element) for element in value]
    if isinstance(value, str) and ("/" in value or "*" in value or os.path.splitext(value)[1]):
        return "(a path)" if tf.io.gfile.glob(os.path.expanduser(value)) else value
    return value
