"""What the modules in data/ share: reading files from any position, holding documents out, tasks.

A module in data/ is what a config names as `data.module`. It has two functions:

    register(vocabulary, objective, **settings) -> None       adds its tasks to seqio's registry
    documents(split, **settings) -> tf.data.Dataset           the raw {"text"} of a split

and one of labelled text a third, for the names of classes or tags in the order of their numbers:

    labels(objective, **settings) -> tuple[str, ...]          none of an objective without labels

Registering again replaces the tasks, so a notebook may change a setting and go on.
"""

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import seqio
import tensorflow as tf

from t5x_like.names import choose, hint
from t5x_like.preprocessing import cleaning
from t5x_like.preprocessing.objectives import Objective
from t5x_like.preprocessing.task_vocabulary import TaskVocabulary
from t5x_like.vocabularies import Vocabulary

SPLITS = ("train", "validation")

_TYPES = {"value": tf.float32}

# Objectives that read {"inputs", "targets"} and no running text.
OF_PAIRS = ("text_to_text", "marked_text_to_text", "translation", "masked_targets")

# Held-out documents are chosen in steps of one in ten thousand.
_BUCKETS = 10_000


def load_module(path: str) -> ModuleType:
    """Imports a module of data/ by its path, once a process.

    Args:
        path: of a Python file with `register` and `documents`, such as "data/pydocs.py".

    Raises:
        ValueError: there is no such file, with the nearest one, or it lacks one of the functions.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        beside = [str(other) for other in file.parent.glob("*.py")]
        raise ValueError(f"The data module {path!r} does not exist.{hint(path, beside)}")
    return _import(file.resolve())


@functools.cache
def _import(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"data.{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None  # it was found by the name of a Python file
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)
    spec.loader.exec_module(module)
    missing = [name for name in ("register", "documents") if not hasattr(module, name)]
    if missing:
        raise ValueError(f"The data module {str(file)!r} lacks the function {missing[0]!r}.")
    return module


def check_settings(function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Checks the settings of a data module before they are given to one of its functions.

    Raises:
        ValueError: one that the function does not have, with the nearest, or one that it lacks.
    """
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return  # it passes its settings on, to be checked there
    known = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    for name in settings:
        choose("data setting", name, known)
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in settings:
            raise ValueError(f"The data setting {name!r} is not set.")


def held_out(text: tf.Tensor, *, fraction: float) -> tf.Tensor:
    """Tells which documents are for validation: the rule of every corpus without its own split.

    The FarmHash fingerprint of the document, with every run of ASCII whitespace read as one space,
    falls into one of 10,000 buckets; the first `fraction` of these are held out. So the rule looks
    at nothing but the text: copies of a document are always on the same side, wherever and
    however often they stand, and a larger fraction holds out all that a smaller one does.

    Args:
        text: strings of any shape.
        fraction: of the documents, from 0 to 1, in steps of 0.0001.

    Returns:
        Booleans of the same shape.
    """
    words = tf.strings.strip(tf.strings.regex_replace(text, r"\s+", " "))
    return tf.strings.to_hash_bucket_fast(words, _BUCKETS) < round(fraction * _BUCKETS)


class FileSource(seqio.DataSource):
    """Examples out of files, in any number of shards, from any position.

    A unit is what is read from its start to its end: a file, or a part of one. With at least as
    many units as shards, a shard takes whole units; with fewer, it takes every n-th raw row of
    each unit, before anything is parsed. What comes at a position depends on nothing but the
    position (and the seed), so that tf.data can save and restore an iterator over it.

    Attributes:
        tokens: how many each split has, set by who knows it: then a run tells how often it has
            read the source.
    """

    def __init__(
        self,
        *,
        list_units: Callable[[str], Sequence[str]],
        read: Callable[[tf.Tensor], tf.data.Dataset],
        examples: Callable[[tf.data.Dataset, str], tf.data.Dataset],
        count: Callable[[str], int | None] = lambda split: None,
        cycle: int = 16,
    ):
        """Reads nothing yet.

        Args:
            list_units: from a split to its units in order; called when the split is first read.
            read: from a scalar string, a unit, to the dataset of its raw rows.
            examples: from a dataset of raw rows, and the split, to the examples of the split.
            count: from a split to its number of examples, None if unknown.
            cycle: units read in turns.
        """
        super().__init__(splits=SPLITS)
        self._list_units = functools.cache(list_units)
        self._read = read
        self._examples = examples
        self._count = count
        self._cycle = cycle
        self.tokens: dict[str, int] = {}

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """True: a shard never has to read and parse what belongs to others."""
        return True

    def list_shards(self, split: str) -> Sequence[str]:
        """Returns the units of a split."""
        return self._list_units(self._checked(split))

    def num_input_examples(self, split: str) -> int | None:
        """Returns the number of examples of a split, before preprocessing; None if unknown."""
        return self._count(self._checked(split))

    def num_tokens(self, split: str) -> int | None:
        """Returns the number of tokens of a split; None if unknown."""
        return self.tokens.get(self._checked(split))

    @staticmethod
    def _checked(split: str) -> str:
        return choose("split", split, {known: known for known in SPLITS})

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **unused: Any,
    ) -> tf.data.Dataset:
        """Returns the examples of a split, or of one shard of it; `shuffle` shuffles the units."""
        del unused  # seqio also passes what concerns a task alone
        units = self.list_shards(split)
        dataset = tf.data.Dataset.from_tensor_slices(list(units))
        whole_units = shard_info is not None and len(units) >= shard_info.num_shards
        if shard_info and whole_units:
            dataset = dataset.shard(shard_info.num_shards, shard_info.index)

        def read(unit: tf.Tensor) -> tf.data.Dataset:
            rows = self._read(unit)
            if shard_info is None or whole_units:
                return rows
            # Within a unit, so that the shards are disjoint even if each shuffles in its own way.
            return rows.shard(shard_info.num_shards, shard_info.index)

        if shuffle:
            dataset = dataset.shuffle(len(units), seed=seed)
        rows = dataset.interleave(read, cycle_length=self._cycle, block_length=16)
        return self._examples(rows, split)


def add_task(
    name: str,
    *,
    source: seqio.DataSource,
    vocabulary: Vocabulary,
    preprocessors: Sequence[Callable[..., tf.data.Dataset]],
    features: Sequence[str],
) -> None:
    """Adds a task to seqio's registry, in place of one of the same name.

    Args:
        name: letters, digits, "_", ".", ":" and "#".
        source: of the raw examples.
        vocabulary: of every feature; each sequence ends with its end-of-sequence token.
        preprocessors: from the raw examples to tokens.
        features: the names of the features that come out, sequences of int32, of float32 for
            "value".
    """
    seqio.TaskRegistry.remove(name)
    seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=list(preprocessors),
        output_features={
            feature: seqio.Feature(TaskVocabulary(vocabulary), dtype=_TYPES.get(feature, tf.int32))
            for feature in features
        },
    )


def add_document_task(
    name: str, *, source: seqio.DataSource, vocabulary: Vocabulary, objective: Objective
) -> None:
    """Adds a task that cleans the documents of `source` and applies `objective` to them."""
    add_task(
        name,
        source=source,
        vocabulary=vocabulary,
        preprocessors=[cleaning.clean, *objective.preprocessors],
        features=objective.features,
    )


def add_pair_task(
    name: str, *, source: seqio.DataSource, vocabulary: Vocabulary, objective: Objective
) -> None:
    """Adds a task that cleans {"inputs", "targets"} and applies `objective` to them.

    Raises:
        ValueError: an objective of running text.
    """
    if objective.name not in OF_PAIRS:
        raise ValueError(
            f"data.objective={objective.name!r} reads documents, and the task {name!r} has pairs."
            + hint(objective.name, OF_PAIRS)
        )
    add_task(
        name,
        source=source,
        vocabulary=vocabulary,
        preprocessors=[cleaning.clean_pairs, *objective.preprocessors],
        features=objective.features,
    )


def both_sides(source: seqio.DataSource, split: str) -> tf.data.Dataset:
    """Returns {"text": scalar string}: the inputs and the targets of each pair, in turn."""
    return source.get_dataset(split, shuffle=False).flat_map(
        lambda pair: tf.data.Dataset.from_tensor_slices({"text": [pair["inputs"], pair["targets"]]})
    )
