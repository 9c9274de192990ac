"""Tokenize the tasks of a data module into seqio's offline cache, without Apache Beam.

The training split has one file for each shard of its source, so that processes share the work;
every other split has one file, in the order in which evaluations read it.
"""

import collections
import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5x_like import paths, vocabularies
from t5x_like.batches import data_modules
from t5x_like.batches.tokenized_folder import UNFINISHED_ENDING, FilePart
from t5x_like.preprocessing import line_datasets, pipeline
from t5x_like.preprocessing.offline_cache import Origin, features_of
from t5x_like.preprocessing.pipeline import RegisteredTasks

_COUNTS = f".counts{UNFINISHED_ENDING}"  # of a file with counts, until all parts are written


@dataclasses.dataclass(frozen=True)
class TextOfTasks:
    """The tasks to tokenize, a `tokenized_folder.Text`.

    Attributes:
        module: the path of a data module with seqio tasks.
        settings: its settings.
        vocabulary: the name of the vocabulary.
        tasks: the names of tasks, or of mixtures for all of their tasks.
        objective: the name of the objective.
        objective_settings: its settings.
    """

    module: str
    settings: Mapping[str, Any]
    vocabulary: str
    tasks: Sequence[str]
    objective: str
    objective_settings: Mapping[str, Any]

    def open(self) -> "OpenedTasks":
        """Register the tasks.

        Raises:
            ValueError: the vocabulary, a task, the objective, a setting or a file does not exist.
        """
        vocabulary = vocabularies.load(self.vocabulary)
        RegisteredTasks(
            data_modules.load(self.module),
            self.settings,
            vocabulary=vocabulary,
            objective=self.objective,
            objective_settings=self.objective_settings,
        )
        tasks = {task.name: task for name in self.tasks for task in pipeline.tasks_of(name)}
        origin = Origin(vocabulary, self.settings, self.objective, self.objective_settings)
        return OpenedTasks(tasks, origin)


@dataclasses.dataclass(frozen=True)
class _Shard(FilePart):
    """A shard of a split that becomes one file."""

    task: str
    split: str
    number: int
    shards: int


@dataclasses.dataclass(frozen=True)
class OpenedTasks:
    """Registered tasks; see `tokenized_folder.Opened`.

    Attributes:
        tasks: {name: task}.
        origin: the settings of a config that decide their examples.
    """

    tasks: Mapping[str, seqio.Task]
    origin: Origin

    @property
    def identity(self) -> Mapping[str, Any]:
        """What decides the examples; raises ValueError if a task has no cache placeholder."""
        return self.origin.identity(
            (task, split) for task in self.tasks.values() for split in task.splits
        )

    @property
    def layout(self) -> Mapping[str, Any]:
        """Empty: the files of the source decide the layout."""
        return {}

    @property
    def keys(self) -> Sequence[str]:
        """The splits of all tasks."""
        return [f"{name}/{split}" for name, task in self.tasks.items() for split in task.splits]

    def parts(self) -> Sequence["_Shard"]:
        """Return the files, with seqio's names."""
        return [
            part
            for name, task in self.tasks.items()
            for split in task.splits
            for part in _shards(name, split, task.source)
        ]

    def write(self, part: _Shard, file: pathlib.Path) -> None:
        """Write the examples of a shard as TFRecords, and their counts beside them."""
        task, counts = self.tasks[part.task], _Counts()
        dataset = _examples(task, part)
        features_of(dataset, task=task.name)  # raises an error before the first example
        with tf.io.TFRecordWriter(str(file)) as writer:
            files = line_datasets.files_of(task.source, part.split)
            for example in line_datasets.named(dataset.as_numpy_iterator(), files):
                counts.add(example, task.output_features)
                writer.write(seqio.dict_to_tfexample(example).SerializeToString())
        beside = file.parent / (pathlib.Path(part.file).name + _COUNTS)
        paths.write_whole(beside, json.dumps(dataclasses.asdict(counts)))

    def finish(self, folder: pathlib.Path) -> None:
        """Write seqio's info.SPLIT.json, stats.SPLIT.json and COMPLETED of each task."""
        by_split = collections.defaultdict(list)
        for part in self.parts():
            by_split[part.key].append(part)
        for shards in by_split.values():
            first, task_folder = shards[0], (folder / shards[0].file).parent
            total = _Counts()
            for part in shards:
                total.merge(_Counts(**json.loads((folder / (part.file + _COUNTS)).read_text())))
            info = {
                "num_shards": first.shards,
                "features": features_of(_examples(self.tasks[first.task], first), task=first.task),
                "seqio_version": seqio.__version__,
            }
            _write_json(seqio.get_cached_info_path(task_folder, first.split), info)
            _write_json(seqio.get_cached_stats_path(task_folder, first.split), total.stats())
        for name in self.tasks:
            paths.write_whole(folder / seqio.get_task_dir_from_name(name) / "COMPLETED", "")


@dataclasses.dataclass
class _Counts:
    """The numbers of examples, and of tokens of each feature without EOS and padding."""

    examples: int = 0
    tokens: dict[str, int] = dataclasses.field(default_factory=dict)
    longest: dict[str, int] = dataclasses.field(default_factory=dict)

    def add(self, example: Mapping[str, Any], features: Mapping[str, seqio.Feature]) -> None:
        """Count an example."""
        counts = _Counts(1)
        for name, feature in features.items():
            value = np.asarray(example.get(name, ""))
            if np.issubdtype(value.dtype, np.integer):
                none = [feature.vocabulary.eos_id, feature.vocabulary.pad_id]
                ignored = [token for token in none if token is not None]
                number = int(np.sum(~np.isin(value, ignored)))
                counts.tokens[name] = counts.longest[name] = number
        self.merge(counts)

    def merge(self, other: "_Counts") -> None:
        """Add the counts of other examples."""
        self.examples += other.examples
        for name, number in other.tokens.items():
            self.tokens[name] = self.tokens.get(name, 0) + number
            self.longest[name] = max(self.longest.get(name, 0), other.longest[name])

    def stats(self) -> dict[str, int]:
        """Return the counts in the form of stats.SPLIT.json."""
        return {
            "examples": self.examples,
            **{f"{name}_tokens": number for name, number in self.tokens.items()},
            **{f"{name}_max_tokens": number for name, number in self.longest.items()},
        }


def _shards(name: str, split: str, source: seqio.DataSource) -> list[_Shard]:
    number = len(source.list_shards(split)) if split == "train" else 1
    prefix = seqio.get_cached_tfrecord_prefix(seqio.get_task_dir_from_name(name), split)
    return [
        _Shard(f"{name}/{split}", f"{prefix}-{n:05d}-of-{number:05d}", name, split, n, number)
        for n in range(number)
    ]


def _examples(task: seqio.Task, part: _Shard) -> tf.data.Dataset:
    """Return the examples of a shard before the cache."""
    shard = seqio.ShardInfo(part.number, part.shards) if part.shards > 1 else None
    rows = task.source.get_dataset(part.split, shuffle=False, shard_info=shard)
    return task.preprocess_precache(rows, seed=0)


def _write_json(file: str, content: Mapping[str, Any]) -> None:
    paths.write_whole(pathlib.Path(file), json.dumps(content, indent=2, sort_keys=True) + "\n")
