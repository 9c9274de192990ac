"""Batches of a seqio task or mixture for each process, deterministic and resumable at any step.

`RegisteredTasks` are the tasks of a data module that registers them with seqio.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import seqio
import tensorflow as tf

from t5x_like.batches import converters
from t5x_like.batches.conversion import Converter
from t5x_like.batches.sharded_batches import (
    Reading,
    ShardedBatches,
    check_continued,
    check_numbers,
    check_shards,
)
from t5x_like.names import hint
from t5x_like.objectives.objective import PAIR
from t5x_like.preprocessing import cleaning, line_datasets, mixtures, seqio_objectives, sources
from t5x_like.preprocessing.offline_cache import OfflineCache, Origin
from t5x_like.preprocessing.streams import TaskReader
from t5x_like.preprocessing.task_vocabulary import check_same_tokens
from t5x_like.vocabularies import Vocabulary

# The minimum shuffle buffer of a task with a small share in a mixture, over all shards.
_LEAST_BUFFER = 1000


class SeqioBatches(ShardedBatches):
    """An iterator over this process's rows of each global batch of a task or mixture.

    A global batch has `batch_size / shards` rows of each shard, in order. A process reads the
    shards of its rows. Without `repeat`, the iterator ends when all shards are exhausted, and
    missing rows are filled with zeros, which have no loss. It then reads the tasks of a mixture one
    after the other, whatever their rates.

    Args:
        task: the name of a registered seqio Task or Mixture.
        split: the split of the task.
        batch_size: the number of rows of a global batch.
        lengths: the largest number of tokens of each feature.
        converter: a feature converter, or its name.
        pack: whether to put several short examples into a row.
        open_rows: the number of rows per shard that examples may still be packed into.
        seed: the seed of the order, the noise and the mixture; 0 or more.
        shuffle: False keeps the order of the source within a shard.
        repeat: whether to continue endlessly, in epochs with different orders and noise; False for
            one epoch.
        shuffle_buffer: the number of examples in the shuffle buffers of all shards together.
        shards: the number of shards of the data: a multiple of every number of processes with
            which the run may continue, and at most the number of documents.
        rows: the positions of this process's rows in a global batch, in order; None for all.
        any_process: a collective function: all processes call it, and it is True if any process
            passes True. It makes one epoch end on all processes at the same batch; None with one
            process.
        phase: the name of the run's phase; a position can only be restored in the same phase.
        cache: the tokenized examples to read instead of tokenizing; None to tokenize.

    Raises:
        ValueError: the task, split or converter is unknown, the features do not suit the
            converter, a length is missing, numbers do not divide, or the cache does not fit; while
            iterating, a shard has no examples.
    """

    def __init__(
        self,
        task: str,
        *,
        split: str,
        batch_size: int,
        lengths: Mapping[str, int],
        converter: str | Converter = "encoder_decoder",
        pack: bool = False,
        open_rows: int = 16,
        seed: int = 0,
        shuffle: bool = True,
        repeat: bool = True,
        shuffle_buffer: int = 10_000,
        shards: int = 1,
        rows: Sequence[int] | None = None,
        any_process: Callable[[bool], bool] | None = None,
        phase: str = "",
        cache: OfflineCache | None = None,
    ):
        check_numbers(seed=seed, shuffle_buffer=shuffle_buffer, batch_size=batch_size)
        check_shards(shards, batch_size=batch_size, rows=rows)
        provider = find(task, split=split)
        is_mixture = isinstance(provider, seqio.Mixture)
        if isinstance(converter, str):
            converter = converters.build(converter)
        features = _read_features(provider, converter)
        converters.check(converter, features=features, lengths=lengths, pack=pack)
        check_continued(
            converter,
            task=task,
            mixture=is_mixture,
            batch_size=batch_size,
            shards=shards,
            mixed=pack or shuffle,
        )
        lengths = converter.feature_lengths(lengths)
        reading = Reading(split, lengths, seed, shuffle, repeat, shuffle_buffer, shards)
        shares = mixtures.shares(provider, split=split)
        members = {member.name: member for member in tasks_of(task) if member.name in shares}
        readers = self._readers = _readers(
            [cache.task(member, split=split) if cache else member for member in members.values()],
            shares,
            reading,
            features=converter.features,
        )
        super().__init__(
            readers,
            shares,
            task=task,
            reading=reading,
            batch_size=batch_size,
            converter=converter,
            pack=pack,
            open_rows=open_rows,
            rows=rows,
            any_process=any_process,
            phase=phase,
            sizes={name: _tokens_of(member, split=split) for name, member in members.items()},
        )

    def notes(self) -> list[str]:
        """See `ShardedBatches`."""
        return [note for reader in self._readers.values() for note in reader.notes()]


def source_rows(task: str, *, split: str, cleaned: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the source's rows of a task or mixture, in order, without its preprocessors.

    If a task's own preprocessors make the texts of a pair and `seqio.preprocessors.tokenize`
    tokenizes them, the rows are these texts, `inputs` and `targets`.

    Args:
        cleaned: whether to apply the preprocessors of `preprocessing/cleaning.py`, as in training.

    Raises:
        ValueError: the task or split is unknown; a file is damaged.
    """
    find(task, split=split)
    for member in tasks_of(task):
        rows = member.source.get_dataset(split, shuffle=False)
        if seqio.preprocessors.tokenize in member.preprocessors and not _has_pair(rows):
            rows = _pairs_of(member, split, rows)
        for step in member.preprocessors if cleaned else ():
            if getattr(step, "func", step) in (cleaning.clean, cleaning.clean_pairs):
                rows = step(rows)
        files = line_datasets.files_of(member.source, split)
        yield from line_datasets.named(rows.as_numpy_iterator(), files)


def _has_pair(rows: tf.data.Dataset) -> bool:
    return isinstance(rows.element_spec, Mapping) and rows.element_spec.keys() >= set(PAIR)


def _pairs_of(task: seqio.Task, split: str, rows: tf.data.Dataset) -> tf.data.Dataset:
    """Return the texts of the task's pairs; `rows`, if its examples do not keep them."""
    examples = task.get_dataset(sequence_length=None, split=split, shuffle=False)
    texts = {side: f"{side}_pretokenized" for side in PAIR}
    if not examples.element_spec.keys() >= set(texts.values()):
        return rows
    return examples.map(lambda example: {side: example[name] for side, name in texts.items()})


def _read_features(provider: mixtures.Provider, converter: Converter) -> list[str]:
    """Return the features of a task, except optional ones that the converter does not read."""
    features = provider.output_features.items()
    read = converter.features
    return [name for name, feature in features if feature.required or name in read]


def _readers(
    tasks: Sequence[seqio.Task],
    shares: Mapping[str, float],
    reading: Reading,
    *,
    features: tuple[str, ...],
) -> dict[str, TaskReader]:
    """Return the readers of tasks, with shuffle buffers in proportion to their shares."""
    readers = {
        task.name: TaskReader(
            task, reading=_with_buffer_share(reading, shares[task.name]), features=features
        )
        for task in tasks
    }
    for reader in readers.values():
        _ = reader.fingerprint  # traces the preprocessors now, so that wrong lengths fail here
    return readers


def _with_buffer_share(reading: Reading, share: float) -> Reading:
    least = min(_LEAST_BUFFER, reading.shuffle_buffer)
    buffer = max(least, round(share * reading.shuffle_buffer))
    return dataclasses.replace(reading, shuffle_buffer=buffer)


def _tokens_of(task: seqio.Task, *, split: str) -> int | None:
    count = getattr(task.source, "num_tokens", None)
    return None if count is None else count(split)


def find(task: str, *, split: str) -> mixtures.Provider:
    """Return the registered task or mixture; raise ValueError if it or the split is unknown."""
    provider = _registered(task)
    if split not in provider.splits:
        needs = "; the tasks in evaluate.tasks need it" if split == "validation" else ""
        raise ValueError(
            f"split={split!r} of task {task!r} does not exist.{hint(split, provider.splits)}{needs}"
        )
    return provider


def tasks_of(task: str) -> list[seqio.Task]:
    """Return the task of a name, or a mixture's tasks; raise ValueError if it is unknown."""
    provider = _registered(task)
    return list(provider.tasks) if isinstance(provider, seqio.Mixture) else [provider]


def _registered(task: str) -> mixtures.Provider:
    tasks, mixes = seqio.TaskRegistry.names(), seqio.MixtureRegistry.names()
    if task not in tasks and task not in mixes:
        known = hint(task, [*tasks, *mixes])
        raise ValueError(f"task {task!r} (data.task, evaluate.tasks) is not registered.{known}")
    return seqio.get_mixture_or_task(task)


class RegisteredTasks:
    """The tasks and mixtures of a data module, registered anew under their names.

    Args:
        module: a module with the function `register`.
        settings: its settings.
        vocabulary: the vocabulary of all tasks.
        objective: the name of the objective.
        objective_settings: its settings.
        tokenized: a folder of seqio's offline cache to read instead of tokenizing; "" to tokenize.

    Raises:
        ValueError: an objective, a setting or the folder does not exist.
    """

    def __init__(
        self,
        module: ModuleType,
        settings: Mapping[str, Any],
        *,
        vocabulary: Vocabulary,
        objective: str,
        objective_settings: Mapping[str, Any],
        tokenized: str = "",
    ):
        seqio_objective = seqio_objectives.build(objective, **objective_settings)
        sources.check_settings(module.register, settings)
        module.register(vocabulary, seqio_objective, **settings)
        self._settings, self._vocabulary = settings, vocabulary
        origin = Origin(vocabulary, settings, objective, objective_settings)
        self._cache = OfflineCache(tokenized, origin) if tokenized else None

    def batches(self, task: str, *, split: str, **settings: Any) -> ShardedBatches:
        """Return the batches of a task; see `pipeline.SeqioBatches`.

        Raises:
            ValueError: see `pipeline.SeqioBatches`; or the task has another vocabulary.
        """
        for member in tasks_of(task):
            check_same_tokens(member, self._vocabulary)
        return SeqioBatches(task, split=split, cache=self._cache, **settings)

    def rows(self, task: str, *, split: str, cleaned: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the rows of a task's source; see `pipeline.source_rows`."""
        return source_rows(task, split=split, cleaned=cleaned)

    def number_of_rows(self, task: str, *, split: str) -> int:
        """Return the number of rows of a task's source; raise ValueError if it is unknown."""
        return mixtures.number_of_examples(find(task, split=split), split=split)

    def files(self, *tasks: str) -> dict[str, list[str]]:
        """Return the files that tasks read; see `line_datasets.paths`."""
        return line_datasets.paths(tasks, self._settings)
