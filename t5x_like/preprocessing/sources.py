"""Helpers for data modules: resumable file sources, held-out documents, registering tasks.

A config names its data module, a file in data/, as `data.module`. A module of seqio tasks has two
functions:

    register(vocabulary, objective, **settings) -> None       adds its tasks to seqio's registry
    documents(split, **settings) -> tf.data.Dataset           the raw {"text"} of a split

A data module of labelled text also has the names of classes or tags in order:

    labels(objective, **settings) -> tuple[str, ...]          empty if the objective has no labels

It receives the name of the task as `task` if the labels differ between tasks. A module of
benchmarks also has the kind and settings of a task's measure, which replace the measure `benchmark`
of `evaluate.measures`:

    measure(objective, task=..., **settings) -> dict          {"kind": "generation", "metrics": ...}

Registering a task again replaces it, so that a notebook can change a setting and continue.
"""

import functools
import inspect
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from t5x_like import names, objectives
from t5x_like.batches.data_modules import load as load_module
from t5x_like.names import choose, hint
from t5x_like.preprocessing import cleaning
from t5x_like.preprocessing.objectives import Objective
from t5x_like.preprocessing.task_vocabulary import TaskVocabulary
from t5x_like.preprocessing.tracing import traced
from t5x_like.vocabularies import Vocabulary

__all__ = ["load_module"]  # imported here for data modules; the names defined below are public too

SPLITS = ("train", "validation")

_TYPES = {"value": tf.float32}

# Objectives that read {"inputs", "targets"} instead of documents.
OF_PAIRS = tuple(
    name
    for name in objectives.OBJECTIVES
    if isinstance(objectives.examples_of(name, {}), objectives.Pairs)
)

# Held-out documents are chosen in steps of one in ten thousand.
_BUCKETS = 10_000


def check_settings(function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Check the settings of a data module against the arguments of one of its functions.

    Raises:
        ValueError: see `names.check_settings`.
    """
    arguments = inspect.signature(function).parameters.values()
    keywords = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    given = [one.name for one in arguments if one.kind not in keywords]
    names.check_settings("data.settings", function, settings, given=given)


def held_out(text: tf.Tensor, *, fraction: float) -> tf.Tensor:
    """Return whether each document is held out for validation, if a corpus has no such split.

    The FarmHash fingerprint of the document, with every run of ASCII whitespace replaced by one
    space, selects one of 10,000 buckets; the first `fraction` of the buckets is held out. The split
    depends only on the text: copies of a document are always in the same split, and a larger
    fraction holds out all documents that a smaller fraction does.

    Args:
        text: strings of any shape.
        fraction: the share of the documents to hold out, from 0 to 1, in steps of 0.0001.

    Returns:
        Booleans of the same shape.
    """
    words = tf.strings.strip(tf.strings.regex_replace(text, r"\s+", " "))
    return tf.strings.to_hash_bucket_fast(words, _BUCKETS) < round(fraction * _BUCKETS)


class FileSource(seqio.DataSource):
    """A source of examples from files, with any number of shards, readable from any position.

    A unit is a file, or a part of one, that is read from start to end. With at least as many units
    as shards, a shard takes whole units; with fewer, it takes every n-th raw row of each unit,
    before parsing. The example at a position depends only on the position and the seed, so that
    tf.data can save and restore an iterator over it.

    Attributes:
        tokens: the number of tokens of each split, if the data module knows it; a run then logs how
            many epochs of the source it has read.
    """

    def __init__(
        self,
        *,
        list_units: Callable[[str], Sequence[str]],
        read: Callable[[tf.Tensor], tf.data.Dataset],
        examples: Callable[[tf.data.Dataset, str], tf.data.Dataset],
        count: Callable[[str], int | None] = lambda split: None,
        unit_files: Callable[[str], Sequence[str]] = lambda unit: [unit],
        cycle: int = 16,
        splits: Sequence[str] = SPLITS,
        version: str = "",
    ):
        """Create a source without reading data.

        Args:
            list_units: split -> its units in order; called when the split is first read.
            read: a unit, as a scalar string -> the dataset of its raw rows.
            examples: (a dataset of raw rows, the split) -> the examples of the split.
            count: split -> its number of examples, None if unknown.
            unit_files: a unit -> the files that it is read from; by default the unit is the file.
            cycle: the number of units to read in turns.
            splits: the names of the splits.
            version: version of `read`; a position saved with another version is refused.
        """
        super().__init__(splits=splits)
        self.position_version = version
        self._list_units = functools.cache(list_units)
        self._read = read
        self._examples = examples
        self._count = count
        self._unit_files = unit_files
        self._cycle = cycle
        self._traced = functools.cache(self._trace)
        self.tokens: dict[str, int] = {}

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """True: a shard does not parse the rows of other shards."""
        return True

    def list_shards(self, split: str) -> Sequence[str]:
        """Return the units of a split."""
        return self._list_units(self._checked(split))

    def files(self, split: str) -> Sequence[str]:
        """Return the files of a split, without duplicates, in the order of its units."""
        units = self.list_shards(split)
        return list(dict.fromkeys(file for unit in units for file in self._unit_files(unit)))

    def num_input_examples(self, split: str) -> int | None:
        """Return the number of examples of a split, before preprocessing; None if unknown."""
        return self._count(self._checked(split))

    def num_tokens(self, split: str) -> int | None:
        """Return the number of tokens of a split; None if unknown."""
        return self.tokens.get(self._checked(split))

    def _checked(self, split: str) -> str:
        return choose("split", split, {known: known for known in self.splits})

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **unused: Any,
    ) -> tf.data.Dataset:
        """Return the examples of a split or of one shard of it; `shuffle` shuffles the units."""
        del unused  # seqio also passes settings that only tasks use
        units = list(self.list_shards(split))
        shards, shard = (shard_info.num_shards, shard_info.index) if shard_info else (1, 0)
        whole_units = len(units) >= shards
        read = self._traced(split, shuffle, shard_info is not None, whole_units)
        dataset = read(
            units=tf.constant(units, tf.string),
            seed=tf.constant(secrets.randbits(31) if seed is None else seed, tf.int64),
            shards=tf.constant(shards, tf.int64),
            shard=tf.constant(shard, tf.int64),
        )
        dataset.traced = read  # owns the Python functions, which must live as long as the dataset
        return dataset

    def _trace(self, split: str, shuffle: bool, in_shards: bool, whole_units: bool) -> Any:
        """Return the traced function (units, seed, shards, shard) -> examples of a split."""

        def examples(
            units: tf.Tensor, seed: tf.Tensor, shards: tf.Tensor, shard: tf.Tensor
        ) -> tf.data.Dataset:
            dataset = tf.data.Dataset.from_tensor_slices(units)
            if in_shards and whole_units:
                dataset = dataset.shard(shards, shard)

            def read(unit: tf.Tensor) -> tf.data.Dataset:
                rows = self._read(unit)
                if not in_shards or whole_units:
                    return rows
                # Shard within the unit: disjoint even if each shard shuffles the units differently.
                return rows.shard(shards, shard)

            if shuffle:
                dataset = dataset.shuffle(tf.size(units, tf.int64), seed=seed)
            rows = dataset.interleave(read, cycle_length=self._cycle, block_length=16)
            return self._examples(rows, split)

        number = tf.TensorSpec([], tf.int64)
        return traced(
            examples,
            units=tf.TensorSpec([None], tf.string),
            seed=number,
            shards=number,
            shard=number,
        )


def add_task(
    name: str,
    *,
    source: seqio.DataSource,
    vocabulary: Vocabulary,
    preprocessors: Sequence[Callable[..., tf.data.Dataset]],
    features: Sequence[str],
) -> None:
    """Add a task to seqio's registry, replacing a task of the same name.

    Args:
        name: letters, digits, "_", ".", ":" and "#".
        source: the source of the raw examples.
        vocabulary: the vocabulary of every feature, except that "targets" has
            `vocabulary.targets`; each sequence ends with its end-of-sequence token.
        preprocessors: functions from datasets to datasets; the first gets the raw examples, the
            last returns tokens.
        features: the names of the resulting features, sequences of int32, or of float32 for
            "value".
    """
    of_sides = {"targets": TaskVocabulary(vocabulary.targets)}
    of_others = TaskVocabulary(vocabulary)
    seqio.TaskRegistry.remove(name)
    seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=list(preprocessors),
        output_features={
            feature: seqio.Feature(
                of_sides.get(feature, of_others), dtype=_TYPES.get(feature, tf.int32)
            )
            for feature in features
        },
    )


def add_document_task(
    name: str, *, source: seqio.DataSource, vocabulary: Vocabulary, objective: Objective
) -> None:
    """Add a task that cleans the documents of `source` and applies `objective` to them."""
    add_task(
        name,
        source=source,
        vocabulary=vocabulary,
        preprocessors=[cleaning.clean, *objective.cacheable],
        features=objective.features,
    )


def add_pair_task(
    name: str, *, source: seqio.DataSource, vocabulary: Vocabulary, objective: Objective
) -> None:
    """Add a task that cleans pairs {"inputs", "targets"} and applies `objective` to them.

    Raises:
        ValueError: the objective reads documents.
    """
    if objective.name not in OF_PAIRS:
        raise ValueError(
            f"data.objective={objective.name!r} reads documents, but the task {name!r} has pairs."
            + hint(objective.name, OF_PAIRS)
        )
    add_task(
        name,
        source=source,
        vocabulary=vocabulary,
        preprocessors=[cleaning.clean_pairs, *objective.cacheable],
        features=objective.features,
    )


def both_sides(source: seqio.DataSource, split: str) -> tf.data.Dataset:
    """Return the inputs and the targets of each pair as documents, {"text": scalar string}."""
    return source.get_dataset(split, shuffle=False).flat_map(
        lambda pair: tf.data.Dataset.from_tensor_slices({"text": [pair["inputs"], pair["targets"]]})
    )
