"""The data side of an experiment: its vocabulary, its tasks, and their batches."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import ml_collections
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from t5x_like import partitioning, vocabularies
from t5x_like.batches import converters
from t5x_like.experiment import completion
from t5x_like.preprocessing import objectives, sources
from t5x_like.preprocessing.pipeline import Batches, source_rows
from t5x_like.vocabularies import Vocabulary

TARGETS = {
    "decoder_target_tokens": "decoder_loss_weights",
    "encoder_target_tokens": "encoder_loss_weights",
}
_SEGMENTS = ("encoder_segment_ids", "decoder_segment_ids")
MARKS = (*TARGETS.values(), *_SEGMENTS)  # nothing but zeros in a row that only pads


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Where a run's batches come from.

    Attributes:
        vocabulary: of all its tasks.
        converter: of their examples.
        shards: pieces that the training data is cut into; a position is of as many.
        slice: (index, number) of this process's part of each batch.
        register: makes seqio know the tasks again, after those of another phase took their names.
        phase: of the run, "" if it has but one.
    """

    config: ml_collections.ConfigDict
    vocabulary: Vocabulary
    converter: converters.Converter
    shards: int
    slice: tuple[int, int]
    register: Callable[[], None]
    phase: str
    _kept: dict[str, list[dict[str, np.ndarray]]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def train_batches(self) -> Batches:
        """This process's part of each training batch, without end."""
        return self._batches(self.config.data.task, split="train")

    def stop_reading(self) -> None:
        """Drops the training batches, whose buffers would go on to be filled in the background."""
        vars(self).pop("train_batches", None)

    def epochs(self, *, batches: int) -> dict[str, float]:
        """How often each task's source has been read, where its size in tokens is known.

        Call it on all processes.

        Args:
            batches: that were drawn since training began or went on: one more may have been.
        """
        sizes = self.train_batches.sizes()
        read = self.train_batches.tokens(batches=batches)
        counts = np.array([read[task] for task in sizes], np.int64)
        if sizes and jax.process_count() > 1:  # JAX has 32 bits
            halves = np.stack(np.divmod(counts, 2**24)).astype(np.int32)
            halves = np.sum(multihost_utils.process_allgather(halves), axis=0, dtype=np.int64)
            counts = halves[0] * 2**24 + halves[1]
        return {task: float(n) / sizes[task] for task, n in zip(sizes, counts, strict=True)}

    @property
    def eval_tasks(self) -> tuple[str, ...]:
        """The tasks to evaluate on."""
        return tuple(self.config.evaluate.tasks) or (self.config.data.task,)

    def eval_batches(self, task: str) -> Iterable[dict[str, np.ndarray]]:
        """The held-out batches of a task, the same at every call; a few of them are kept."""
        few = self.config.evaluate.batches
        if not few:
            return self._pass(task)
        if task not in self._kept:
            self._kept[task] = list(itertools.islice(self._pass(task), few))
        return self._kept[task]

    def part(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """This process's rows of a global batch."""
        index, number = self.slice
        return {name: np.split(rows, number)[index] for name, rows in batch.items()}

    def held_out_rows(self, task: str) -> Iterator[dict[str, Any]]:
        """The held-out rows of a task as its source has them, the same on all processes."""
        return source_rows(task, split="validation")

    def _pass(self, task: str) -> Batches:
        """One pass over the held-out split."""
        return self._batches(task, split="validation", shuffle=False, repeat=False)

    def _batches(self, task: str, *, split: str, **settings: Any) -> Batches:
        self.register()  # another phase or task may have registered the same names since
        data = self.config.data
        index, number = self.slice
        mine = self.shards // number
        return Batches(
            task,
            split=split,
            batch_size=data.batch_size,
            lengths=data.lengths.to_dict(),
            converter=self.converter,
            pack=data.pack,
            seed=data.seed,
            shuffle_buffer=data.shuffle_buffer,
            shards=self.shards,
            shard_range=(index * mine, (index + 1) * mine),
            any_process=_any_process if jax.process_count() > 1 else None,
            phase=self.phase,
            **settings,
        )


def build(
    config: ml_collections.ConfigDict, mesh: Mesh, *, shards: int | None = None, phase: str = ""
) -> Inputs:
    """Registers the tasks of a config and checks that batches can be made of them.

    Args:
        config: of the whole run, or the settings of one `config.Phase`.
        shards: of an earlier part of the run, from its checkpoint; None to follow the config.
        phase: the name of that phase.

    Raises:
        ValueError: a module, task, objective, converter, vocabulary or length that does not exist
            or does not fit the others.
    """
    data = config.data
    vocabulary = vocabularies.load(data.vocabulary)
    if vocabulary.vocab_size > config.model.vocab_size:
        raise ValueError(
            f"data.vocabulary={data.vocabulary!r} has {vocabulary.vocab_size} ids, sentinels "
            f"included, and model.vocab_size={config.model.vocab_size} has no room for them"
        )
    _check_special_tokens(config, vocabulary)
    objective = objectives.build(data.objective, **data.objective_settings.to_dict())
    module = sources.load_module(data.module)
    settings = data.settings.to_dict()
    sources.check_settings(module.register, settings)
    register = functools.partial(module.register, vocabulary, objective, **settings)
    register()
    number = partitioning.batch_slice(mesh)[1]
    shards = shards or data.shards or number
    if shards % number:
        raise ValueError(f"data.shards={shards} cannot be divided among {number} batch slices")
    converter = make_converter(data, objective, vocabulary)
    _check_labels(config)
    inputs = Inputs(
        config=config,
        vocabulary=vocabulary,
        converter=converter,
        shards=shards,
        slice=partitioning.batch_slice(mesh),
        register=register,
        phase=phase,
    )
    for task in inputs.eval_tasks:
        inputs._pass(task)
    return inputs


def _check_special_tokens(config: ml_collections.ConfigDict, vocabulary: Vocabulary) -> None:
    """Check that the special tokens which the model itself writes are the vocabulary's."""
    for name in ("sep_id", "mask_id"):
        ours, theirs = config.model.get(name), getattr(vocabulary, name)
        if ours not in (None, theirs):
            raise ValueError(
                f"model.{name}={ours}, and data.vocabulary={config.data.vocabulary!r} has {theirs}"
            )


def make_converter(
    data: ml_collections.ConfigDict,
    objective: objectives.Objective,
    vocabulary: Vocabulary,
) -> converters.Converter:
    """The converter of a config, set as objective and vocabulary have it unless the config says."""
    settings: dict[str, Any] = {}
    if data.converter in objective.converters:
        settings |= objective.converter_settings
    # GPT-2 and BART begin a text with the token that ends one, LLaMA with one of its own; T5 with
    # padding, the default.
    starts = hasattr(converters.CONVERTERS.get(data.converter), "start")
    if starts:
        settings["start"] = vocabulary.start_id
    return converters.build(data.converter, **{**settings, **data.converter_settings.to_dict()})


def _check_labels(config: ml_collections.ConfigDict) -> None:
    """Makes sure that the model tells as many labels apart as the data has."""
    names = completion.label_names(config)
    if len(names) > config.model.get("labels", 0):
        raise ValueError(
            f"model.labels={config.model.get('labels', 0)}, and the data has {len(names)}: "
            f"{', '.join(names)}"
        )


def _any_process(flag: bool) -> bool:
    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


def target_counts(batches: Iterable[Mapping[str, np.ndarray]], *, size: int) -> np.ndarray:
    """How often each of `size` tokens is a target that counts, over all processes.

    Of examples that have no targets but a class, how often each class is; of others nothing.
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
    """The entropy of a distribution of tokens, in nats: the least loss of a model of frequencies.

    What a model reaches below it, it has read from the context. 0 if nothing was counted.
    """
    total = counts.sum()
    return float(sum(n / total * math.log(total / n) for n in counts[counts > 0]))


def rows(batches: Iterable[Mapping[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    """The examples of batches one by one, without the rows that only pad."""
    for batch in batches:
        for row in range(len(next(iter(batch.values())))):
            example = {name: values[row] for name, values in batch.items()}
            if any(np.any(example[name]) for name in MARKS if name in example):
                yield example


def plain(value: Any) -> Any:
    """A field of a source's row as strings, numbers and lists of them."""
    if isinstance(value, bytes):
        return value.decode()
    return [plain(one) for one in value] if np.ndim(value) else np.asarray(value).item()
