"""For data modules: sources of rows, held-out documents, registering tasks.

Sources read files from any position, data sets prepared by TensorFlow Datasets, or rows in memory.
"""

import functools
import inspect
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from t5x_like import names, objectives
from t5x_like.batches.data_modules import load as load_module
from t5x_like.grain_pipeline.corpus import Corpus
from t5x_like.names import choose, hint
from t5x_like.preprocessing import cleaning
from t5x_like.preprocessing.seqio_objectives import SeqioObjective
from t5x_like.preprocessing.task_vocabulary import TaskVocabulary
from t5x_like.preprocessing.tracing import traced
from t5x_like.vocabularies import Vocabulary

TensorColumns: TypeAlias = "Mapping[str, tf.Tensor | tf.RaggedTensor]"
_COLUMN_TYPES = {str: tf.string, int: tf.int32, float: tf.float32}


def columns(rows: Sequence[Mapping[str, Any]]) -> TensorColumns:
    """Turn rows with the same fields into columns, [N] or [N, (M)] for lists.

    Values are strings, integers, numbers, or lists of strings or integers.
    """
    return {name: _column([row[name] for row in rows]) for name in rows[0]}


def _column(values: Sequence[Any]) -> tf.Tensor | tf.RaggedTensor:
    if not isinstance(values[0], list):
        return tf.constant(values, _COLUMN_TYPES[type(values[0])])
    flat = [element for value in values for element in value]
    kind = _COLUMN_TYPES[type(flat[0])] if flat else tf.string
    return tf.RaggedTensor.from_row_lengths(tf.constant(flat, kind), [len(v) for v in values])


def row_source(splits: Mapping[str, Sequence[Mapping[str, Any]]]) -> "ColumnSource":
    """Return a source of rows by split; an empty split gets the fields of another split."""
    filled = columns(next(rows for rows in splits.values() if rows))
    none = {field: column[:0] for field, column in filled.items()}
    return ColumnSource(
        lambda split: columns(splits[split]) if splits[split] else none, splits=tuple(splits)
    )


class ColumnSource(seqio.DataSource):
    """A source of rows that are kept in memory.

    Args:
        read: split -> its columns, all of the same length; called when the split is first read.
        splits: the names of the splits.
    """

    def __init__(self, read: Callable[[str], TensorColumns], *, splits: Sequence[str]):
        super().__init__(splits=splits)
        self._read = functools.cache(read)

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """True: a shard is every n-th row."""
        return True

    def list_shards(self, split: str) -> Sequence[str]:
        """Return the split itself as the only shard; raise ValueError if it cannot be read."""
        self._read(split)
        return [split]

    def num_input_examples(self, split: str) -> int:
        """Return the number of rows of a split."""
        return int(next(iter(self._read(split).values())).shape[0])

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **unused: Any,
    ) -> tf.data.Dataset:
        """Return the rows of a split, or of a single shard."""
        del unused  # seqio also passes settings that only tasks use
        columns, size = self._read(split), self.num_input_examples(split)
        # Shuffle indices, so that the data position in a checkpoint contains no text.
        numbers = tf.data.Dataset.range(size)
        if shuffle:
            numbers = numbers.shuffle(max(size, 1), seed=seed)
        if shard_info:
            numbers = numbers.shard(shard_info.num_shards, shard_info.index)
        return numbers.map(
            lambda n: {name: tf.gather(column, n) for name, column in columns.items()}
        )


class PreparedSource(seqio.TfdsDataSource):
    """A prepared data set on disk: a training run never downloads or generates it.

    Args:
        name: the data set with its config and version, "c4/en:3.1.0".
        splits: {our name of a split: its name in the prepared data}.
        data_dir: the folder of prepared data sets; None: `~/tensorflow_datasets`.
        advice: what to do if it is missing, appended to the error message.
    """

    def __init__(self, name: str, *, splits: Mapping[str, str], data_dir: str | None, advice: str):
        super().__init__(
            tfds_name=name,
            tfds_data_dir=data_dir and os.path.expanduser(data_dir),
            splits=dict(splits),
            read_only=True,
        )
        self._advice = advice

    def list_shards(self, split: str) -> Sequence[str]:
        """Return the files of a split; raise ValueError if the data is missing."""
        self._check_prepared()
        return super().list_shards(split)

    def num_input_examples(self, split: str) -> int | None:
        """Return the number of examples of a split; raise ValueError if the data is missing."""
        self._check_prepared()
        return super().num_input_examples(split)

    def get_dataset(self, split: str = "train", *args: Any, **kwargs: Any) -> tf.data.Dataset:
        """Return the examples of a split; raise ValueError if the data is missing."""
        self._check_prepared()
        return super().get_dataset(split, *args, **kwargs)

    def _check_prepared(self) -> None:
        name = self.tfds_dataset.name
        try:
            is_there = bool(self.tfds_dataset.info.splits)
        except (tfds.core.DatasetNotFoundError, AssertionError):
            is_there = False  # a release that the installed builder can neither find nor make
        if is_there:
            return
        folder = self.tfds_dataset.data_dir or "~/tensorflow_datasets"
        raise ValueError(
            f"{name} is not prepared in data_dir={folder!r}. `tfds build {name.partition(':')[0]} "
            f"--data_dir={folder}` prepares it, {self._advice}"
        )


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
    positional = [parameter.name for parameter in arguments if parameter.kind not in keywords]
    names.check_settings("data.settings", function, settings, given=positional)


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
        """Return the examples of a split or of a single shard; `shuffle` shuffles the units."""
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
    name: str,
    *,
    source: seqio.DataSource,
    vocabulary: Vocabulary,
    objective: SeqioObjective,
    tidy: bool = True,
) -> None:
    """Add a task that cleans the documents of `source` and applies `objective` to them.

    Args:
        name, source, vocabulary, objective: of the task.
        tidy: whether cleaning tidies white space, see `cleaning.clean`.
    """
    clean = cleaning.clean if tidy else functools.partial(cleaning.clean, tidy=False)
    add_task(
        name,
        source=source,
        vocabulary=vocabulary,
        preprocessors=[clean, *objective.cacheable],
        features=objective.features,
    )


def add_corpora(
    corpora: Mapping[str, Corpus], *, vocabulary: Vocabulary, objective: SeqioObjective
) -> None:
    """Add a task for each corpus whose rows are in memory."""
    for name, corpus in corpora.items():
        rows = {split: list(part.all_rows()) for split, part in corpus.splits.items()}
        add_task(
            name,
            source=row_source(rows),
            vocabulary=vocabulary,
            preprocessors=objective.cacheable,
            features=objective.features,
        )


def texts_of(corpora: Mapping[str, Corpus], split: str) -> tf.data.Dataset:
    """Return the texts of a split of all corpora, in order, {"text": scalar string}."""
    rows = ((corpus, row) for corpus in corpora.values() for row in corpus.splits[split].all_rows())
    texts = [text for corpus, row in rows for text in corpus.texts(row)]
    return tf.data.Dataset.from_tensor_slices({"text": tf.constant(texts, tf.string)})


def add_pair_task(
    name: str, *, source: seqio.DataSource, vocabulary: Vocabulary, objective: SeqioObjective
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
