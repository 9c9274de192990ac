"""The data side of a run: this process's batches of each task."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from t5x_like import partitioning
from t5x_like.batches import converters
from t5x_like.batches.labelled_rows import CLASS_SEGMENT
from t5x_like.batches.sharded_batches import ShardedBatches
from t5x_like.config.run_settings import DataSettings
from t5x_like.experiment.run import Part
from t5x_like.objectives.objective import Groups
from t5x_like.partitioning import BatchSlice

TARGETS = {
    "decoder_target_tokens": "decoder_loss_weights",
    "encoder_target_tokens": "encoder_loss_weights",
}
_SEGMENTS = ("encoder_segment_ids", "decoder_segment_ids")
_PADDING = 128  # rows to whose multiple the embeddings of published models are padded
_MOST_KEPT = 64 << 20  # bytes of the held-out batches of a task
_FEW = 32  # examples that would not have the same label by chance
_USED = (*TARGETS.values(), *_SEGMENTS)  # all zero in a padding row


@dataclasses.dataclass(frozen=True)
class TaskData:
    """The training and held-out batches of a task.

    Attributes:
        part: the task of the run or of one of its phases.
        shards: pieces that the training data is split into; a saved position has one entry for
            each.
        slice: this process's rows of each batch.
        phase: name of the phase of the run, "" if it has only one.
    """

    part: Part
    shards: int
    slice: BatchSlice
    phase: str
    _held_out: "dict[str, _HeldOut]" = dataclasses.field(default_factory=dict)
    _passes: dict[str, ShardedBatches] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def train_batches(self) -> ShardedBatches:
        """This process's part of each training batch, in endless epochs."""
        return self._batches(self.part.data.task, split="train", shards=self.shards)

    def stop_reading(self) -> None:
        """Release the training iterator, so that it stops prefetching."""
        vars(self).pop("train_batches", None)

    def epochs(self, *, batches: int) -> dict[str, float]:
        """Return how many epochs of each source have been read, if its size in tokens is known.

        Call it on all processes.

        Args:
            batches: the number of batches read since training started or resumed; one more may have
                been prefetched.
        """
        sizes = self.train_batches.sizes()
        read = self.train_batches.tokens(batches=batches)
        counts = np.zeros((self.shards, len(sizes)), np.int64)
        for shard, tokens in read.items():
            counts[shard] = [tokens[task] for task in sizes]
        if sizes and jax.process_count() > 1:  # JAX arrays have 32 bits
            halves = np.stack(np.divmod(counts, 2**24)).astype(np.int32)
            # Processes that read the same shard have equal counts for it; all others have 0.
            halves = np.max(multihost_utils.process_allgather(halves), axis=0).astype(np.int64)
            counts = halves[0] * 2**24 + halves[1]
        total = counts.sum(axis=0)
        return {task: float(n) / sizes[task] for task, n in zip(sizes, total, strict=True)}

    @property
    def eval_tasks(self) -> tuple[str, ...]:
        """The data tasks to evaluate on."""
        return tuple(self.part.evaluated.values())

    def eval_batches(self, task: str) -> Iterable[dict[str, np.ndarray]]:
        """Return this process's rows of the held-out batches of a task.

        The rows of all processes together are the same at every call and on every mesh. After a
        complete pass they are kept in memory, unless all of them are read
        (`evaluate.batches=0`) and they are larger than `_MOST_KEPT`.
        """
        few = self.part.evaluate.batches
        if task not in self._held_out:
            self._held_out[task] = _HeldOut(
                lambda: itertools.islice(self._pass(task), few or None),
                most=math.inf if few else _MOST_KEPT,
            )
        return self._held_out[task]

    def check_held_out(self) -> None:
        """Check that each task has held-out data; call it on all processes.

        Raises:
            ValueError: a task has no held-out example.
        """
        for task in self.eval_tasks:
            if not self._pass(task).has_example():
                raise ValueError(
                    f"data.task={task!r} has no example in its split 'validation' to evaluate on: "
                    "hold out more of the text (data.settings.held_out of most tasks), or set "
                    "evaluate.tasks"
                )

    def notes(self) -> list[str]:
        """Return lines about the data that a user may not have intended; [] if there are none.

        They are about rows of the embeddings without an id, a single class, and files that are
        read more often than others. Call it on all processes.
        """
        return [*_unused_rows(self.part), *_single_class(self), *self.train_batches.notes()]

    def batch_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes of a global training batch."""
        parts = self.slice.number
        return {
            name: jax.ShapeDtypeStruct((rows.shape[0] * parts, *rows.shape[1:]), rows.dtype)
            for name, rows in self.train_batches.blank().items()
        }

    def held_out_rows(self, task: str) -> Iterator[dict[str, Any]]:
        """Yield the held-out rows of a task's source, the same on all processes."""
        return self.part.text.tasks().rows(task, split="validation")

    def _pass(self, task: str) -> ShardedBatches:
        """Return the batches of one pass over the held-out split.

        Unless the config sets the number of shards, it depends on the mesh in training, but not
        here: other shards would have other first rows and other noise. All processes read a single
        shard, and each keeps its rows of the batches.
        """
        data = self.part.data
        continues = self.part.text.converter.continues
        shards = data.shards or (data.batch_size if continues else 1)
        if task not in self._passes:
            self._passes[task] = self._batches(
                task, split="validation", shards=shards, repeat=False
            )
        return self._passes[task].from_start()

    def _batches(
        self, task: str, *, split: str, shards: int, repeat: bool = True
    ) -> ShardedBatches:
        data, text = self.part.data, self.part.text
        tasks = text.tasks()  # anew: another phase or task may have registered the same names
        return tasks.batches(
            task,
            split=split,
            batch_size=data.batch_size,
            lengths=dict(data.lengths),
            converter=text.converter,
            pack=data.pack,
            open_rows=data.open_rows,
            seed=data.seed,
            shuffle=repeat and not text.converter.continues,
            repeat=repeat,
            shuffle_buffer=data.shuffle_buffer,
            shards=shards,
            rows=self.slice.rows(data.batch_size).tolist(),
            # Endless epochs never end, and a single shard ends on all processes at once.
            any_process=_any_process if not repeat and min(shards, self.slice.number) > 1 else None,
            phase=self.phase,
        )


class _HeldOut:
    """The held-out batches of a task, kept in memory after the first complete pass.

    Args:
        read: returns the batches from the first.
        most: the most bytes to keep.
    """

    def __init__(self, read: Callable[[], Iterable[dict[str, np.ndarray]]], *, most: float):
        self._read, self._most = read, most
        self._batches: list[dict[str, np.ndarray]] | None = None

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        """Iterate over the batches, from the first."""
        return self._first_pass() if self._batches is None else iter(self._batches)

    def _first_pass(self) -> Iterator[dict[str, np.ndarray]]:
        batches, size = [], 0
        for batch in self._read():
            size += sum(values.nbytes for values in batch.values())
            if size <= self._most:
                batches.append(batch)
            yield batch
        if size <= self._most:
            self._batches = batches


def build(part: Part, mesh: Mesh, *, shards: int | None = None, phase: str = "") -> TaskData:
    """Register the tasks of the data and check that they can be batched.

    Args:
        shards: the number of shards stored in the run's checkpoint; None to follow the settings.
        phase: the name of the phase.

    Raises:
        ValueError: a module, task, objective, converter, vocabulary or length does not exist or
            does not fit the others; or a batch is larger than the memory of this machine.
    """
    text = part.text
    _check_vocabulary(part)
    text.tasks()
    _check_labels(part)
    continues = text.converter.continues
    inputs = TaskData(
        part=part,
        shards=number_of_shards(part.data, mesh, continues=continues, stored=shards),
        slice=partitioning.batch_slice(mesh),
        phase=phase,
    )
    _check_memory(inputs)
    for task in inputs.eval_tasks:
        inputs._pass(task)
    return inputs


def _check_memory(inputs: TaskData) -> None:
    """Check that this process's rows of a batch fit into memory, before any are allocated.

    Raises:
        ValueError: they do not fit, or the examples do not suit the converter.
    """
    data, text = inputs.part.data, inputs.part.text
    row = converters.empty_row(
        text.converter,
        features=text.examples.features,
        lengths=dict(data.lengths),
        pack=data.pack,
    )
    rows = data.batch_size // inputs.slice.number
    partitioning.check_memory(
        f"data.batch_size={data.batch_size}: the rows of each batch",
        rows * sum(x.nbytes for x in row.values()),
        partitioning.host_memory(),
    )


def number_of_shards(
    data: DataSettings, mesh: Mesh, *, continues: bool, stored: int | None = None
) -> int:
    """Return the number of shards in which the processes of a mesh read the training data.

    Args:
        data: the settings.
        continues: whether rows continue from batch to batch, so that each row is a shard.
        stored: the number with which the run started; None for a new run.

    Raises:
        ValueError: the processes cannot share them.
    """
    number = partitioning.batch_slice(mesh).number
    # One for each device that holds rows, so that the run can resume on more or fewer processes.
    parts = partitioning.batch_parts(mesh.shape)
    if stored and data.shards not in (0, stored):
        raise ValueError(
            f"data.shards={data.shards}, and this run reads its data in {stored} shards, whose "
            f"positions its checkpoints have: set data.shards={stored}, or another workdir"
        )
    shards = stored or data.shards or (data.batch_size if continues else parts)
    if shards % number:
        raise ValueError(
            f"data.shards={shards} cannot be divided among {number} batch slices; a run keeps the "
            "number that it began with, by default one for each device that held rows: start a run "
            f"that will continue on more processes with a multiple, as data.shards={number}"
        )
    return shards


def _check_vocabulary(part: Part) -> None:
    """Check that the model has an embedding for each id, and the vocabulary's special tokens."""
    name, vocabulary, model = part.data.vocabulary, part.text.vocabulary, part.model
    segments = model.get("token_types")
    if vocabulary.class_last and segments is not None and segments <= CLASS_SEGMENT:
        last = vocabulary.piece(vocabulary.suffix_ids[-1])
        raise ValueError(
            f"data.vocabulary={name!r} ends rows with {last}, of segment {CLASS_SEGMENT}: set "
            f"model.token_types={CLASS_SEGMENT + 1} or more, not {segments}, or use another "
            "vocabulary"
        )
    if vocabulary.vocab_size > model["vocab_size"]:
        raise ValueError(
            f"data.vocabulary={name!r} has {vocabulary.vocab_size} ids, sentinels included, and "
            f"model.vocab_size={model['vocab_size']} has no room for them"
        )
    ids = {
        "sep_id": vocabulary.sep_id,
        "mask_id": vocabulary.mask_id,
        "end_id": vocabulary.eos_id,
    }
    for setting, token in ids.items():
        if model.get(setting) not in (None, token):
            raise ValueError(
                f"model.{setting}={model[setting]}, and data.vocabulary={name!r} has {token}"
            )


def _check_labels(part: Part) -> None:
    """Check that the model has at least as many labels as the data."""
    names, number = part.text.labels, part.model.get("labels", 0)
    if len(names) > number:
        raise ValueError(
            f"model.labels={number}, and the data has {len(names)}: {', '.join(names)}"
        )


def _unused_rows(part: Part) -> Iterator[str]:
    """Describe the rows of the embeddings that no id uses, unless they are padding to 128."""
    ids, rows = part.text.vocabulary.vocab_size, part.model["vocab_size"]
    if rows - ids >= _PADDING:
        yield (
            f"data.vocabulary={part.data.vocabulary!r} has {ids} ids, and "
            f"model.vocab_size={rows}: {rows - ids} rows of the embeddings are never used"
        )


def _single_class(inputs: TaskData) -> Iterator[str]:
    """Describe labels that are all the same, so that nothing can be learned from them.

    If the data has no names of classes, the objective made the labels: the first held-out examples
    of this process then show whether there are others.
    """
    text, name = inputs.part.text, f"data.objective={inputs.part.data.objective!r}"
    if len(text.labels) == 1:
        yield f"{name}: the data has one class, {text.labels[0]!r}, so there is nothing to learn"
    if text.labels or "label" not in inputs.batch_shapes():
        return
    for task in inputs.eval_tasks:
        number = -(-_FEW // len(inputs.slice.rows(inputs.part.data.batch_size)))
        batches = itertools.islice(inputs.eval_batches(task), number)
        labels = [int(row["label"]) for row in rows(batches)]
        if len(labels) >= _FEW // 2 and len(set(labels)) == 1:
            pairs = isinstance(text.examples, Groups)
            advice = ": pairs of segments need documents of several sentences" if pairs else ""
            yield (
                f"{name}: the first {len(labels)} held-out examples of {task!r} all have label "
                f"{labels[0]}, so there is nothing to learn from the labels{advice}"
            )


def _any_process(flag: bool) -> bool:
    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


def target_counts(batches: Iterable[Mapping[str, np.ndarray]], *, size: int) -> np.ndarray:
    """Count how often each of `size` tokens is a target with a loss, over all processes.

    For examples with a class and no targets, count each class; for others all counts are 0.
    """
    counts = np.zeros(size, np.int64)
    for batch in batches:
        pairs = [(batch[name], batch[TARGETS[name]]) for name in TARGETS if name in batch]
        if not pairs and "label" in batch:
            segments = next(batch[name] for name in _SEGMENTS if name in batch)
            pairs = [(batch["label"], segments.reshape(len(segments), -1)[:, 0])]
        for targets, weights in pairs:
            counts += np.bincount(targets[weights > 0], minlength=size)
    if jax.process_count() > 1:
        counts = np.sum(multihost_utils.process_allgather(counts), axis=0)
    return counts


def unigram_entropy(counts: np.ndarray) -> float:
    """Return the entropy of token counts in nats: the lowest loss of a unigram model.

    A model with a lower loss has learned from the context. 0 if nothing was counted.
    """
    total = counts.sum()
    return float(sum(n / total * math.log(total / n) for n in counts[counts > 0]))


def rows(batches: Iterable[Mapping[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    """Yield the examples of batches one by one, without padding rows."""
    for batch in batches:
        for row in range(len(next(iter(batch.values())))):
            example = {name: values[row] for name, values in batch.items()}
            if any(np.any(example[name]) for name in _USED if name in example):
                yield example


def plain(value: Any) -> Any:
    """Convert a field of a source's row to a string, a number or a list of either."""
    if isinstance(value, bytes):
        return value.decode()
    return [plain(element) for element in value] if np.ndim(value) else np.asarray(value).item()
