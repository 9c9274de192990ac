"""Trace functions from datasets to datasets once for all epochs and shards of the same data.

Each `map` of a tf.data dataset traces its function anew. Inside a function that is traced as a
whole, this happens once; whatever differs between calls, such as seeds, is an argument.
"""

import contextlib
import dataclasses
import functools
import itertools
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import seqio
import tensorflow as tf

# Examples fetched from tf.data at once: a fetch costs as much as several dozen short examples.
_BLOCK = 32
_BLOCKS_AHEAD = 2
_ADDRESS = re.compile(rb"<[\w.]+ object at 0x[0-9a-f]+>")


def traced(function: Callable[..., tf.data.Dataset], *arguments: Any, **named: Any) -> Any:
    """Trace a function for arguments of the given `tf.TypeSpec`s.

    The result owns the Python functions that its datasets call: keep a reference to it while any of
    these datasets is in use.
    """
    # AutoGraph allows Python conditions on tensors in the functions that are mapped over examples.
    # `function` is not converted itself, so AutoGraph's status outside is applied explicitly.
    autograph = tf.__internal__.autograph.control_status_ctx()

    def call(*arguments: Any, **named: Any) -> tf.data.Dataset:
        with autograph:
            return function(*arguments, **named)

    return tf.function(call, autograph=False).get_concrete_function(*arguments, **named)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Everything that the traced preprocessing of a task depends on.

    Attributes:
        preprocessors: the task's preprocessors; a function is equal only to itself.
        output_features: (name, `seqio.Feature`) of each feature of the task.
        lengths: (name, the largest number of tokens) of each feature.
        features: the names of the features to keep.
        buffer: the number of examples in the shuffle buffer; None to keep the order.
        examples: the spec of the source's dataset.
    """

    preprocessors: tuple[Any, ...]
    output_features: tuple[tuple[str, seqio.Feature], ...] = dataclasses.field(hash=False)
    lengths: tuple[tuple[str, int], ...]
    features: tuple[str, ...]
    buffer: int | None
    examples: tf.data.DatasetSpec

    def apply(self, source: tf.data.Dataset) -> tf.data.Dataset:
        """Apply the preprocessors to the examples of a source, in order."""
        task = seqio.Task(
            "preprocessing",
            source=_Given(source),
            preprocessors=self.preprocessors,
            output_features=dict(self.output_features),
        )
        dataset = task.get_dataset(
            dict(self.lengths), split=_Given.SPLIT, shuffle=False, seed=0, num_epochs=1
        )
        return dataset.map(lambda example: {name: example[name] for name in self.features})


def blocks_of(preprocessing: Preprocessing) -> Any:
    """Return the traced function (source, noise_seed, order_seed, skip) -> blocks of examples.

    noise_seed: int64, added to the seeds of the preprocessors' noise; order_seed: int64, the seed
    of the shuffle buffer; skip: int64, the number of examples to skip.

    A study, a notebook or a test opens the same data many times, and a trace takes 0.3 s. Traces
    are cached if all preprocessors come from this package or seqio, since these depend on nothing
    else; a user's function may read a global that has changed.
    """
    known = all(map(is_known, preprocessing.preprocessors))
    return (_trace_once if known else _trace)(preprocessing)


def is_known(step: Any) -> bool:
    """Return whether a preprocessor is defined in this package or in seqio."""
    while isinstance(step, functools.partial):
        step = step.func
    return getattr(step, "__module__", "").partition(".")[0] in ("t5x_like", "seqio")


def _trace(preprocessing: Preprocessing) -> Any:
    def preprocess(source, noise_seed, order_seed, skip):
        with _noise_seeds_raised_by(noise_seed):
            dataset = preprocessing.apply(source)
        if (buffer := preprocessing.buffer) is not None:
            dataset = dataset.shuffle(buffer, seed=order_seed, reshuffle_each_iteration=False)
        return dataset.skip(skip).ragged_batch(_BLOCK).prefetch(_BLOCKS_AHEAD)

    number = tf.TensorSpec([], tf.int64)
    concrete = traced(
        preprocess, preprocessing.examples, noise_seed=number, order_seed=number, skip=number
    )
    _check_no_address(concrete.graph.as_graph_def())
    return concrete


_trace_once = functools.lru_cache(maxsize=16)(_trace)


def hash_of_operations(graph: Any) -> int:
    """Hash a graph's operations and constants, independent of their names and order."""
    return zlib.crc32(b"".join(sorted(_operations(graph))))


def _operations(graph: Any) -> Iterator[bytes]:
    functions = [graph.node, *(function.node_def for function in graph.library.function)]
    for node in itertools.chain.from_iterable(functions):
        yield (node.op + " ").encode() + node.attr["value"].SerializeToString(deterministic=True)


def _check_no_address(graph: Any) -> None:
    """Check that the hash of a graph's operations will be the same in another process.

    Raises:
        ValueError: a constant contains an object's address.
    """
    for operation in _operations(graph):
        if address := _ADDRESS.search(operation):
            raise ValueError(
                f"a constant of the preprocessors contains {address[0].decode()}, which is another "
                "one in every process, so that no run could be resumed: give its class a __repr__"
            )


class _Given(seqio.DataSource):
    """A dataset wrapped as a task's source with one split."""

    SPLIT = "given"

    def __init__(self, dataset: tf.data.Dataset):
        super().__init__(splits=[self.SPLIT])
        self._dataset = dataset

    @property
    def supports_arbitrary_sharding(self) -> bool:
        return True

    def list_shards(self, split: str) -> list[str]:
        return [split]

    def get_dataset(self, *args: Any, **settings: Any) -> tf.data.Dataset:
        del args, settings
        return self._dataset


@contextlib.contextmanager
def _noise_seeds_raised_by(number: tf.Tensor) -> Iterator[None]:
    """Add a tensor to the seeds of the preprocessors' noise.

    `seqio.map_over_dataset` counts seeds up from a Python number and passes each to
    `tf.data.Dataset.random`; within this context `number` is added to them there.
    """
    original = tf.data.Dataset.random

    def raised(seed: int | None = None, **options: Any) -> tf.data.Dataset:
        return original(number + (seed or 0), **options)

    tf.data.Dataset.random = raised
    try:
        yield
    finally:
        tf.data.Dataset.random = staticmethod(original)
