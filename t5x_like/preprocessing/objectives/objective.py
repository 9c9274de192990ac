"""An objective: preprocessors from text to examples, and the features of the examples."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from t5x_like.batches.chunk_lengths import Sizes
from t5x_like.batches.objective_examples import Examples, examples_of
from t5x_like.preprocessing.objectives.running_text import chunking
from t5x_like.preprocessing.objectives.running_text.lengths import Lengths, OutputFeatures, plan
from t5x_like.vocabularies import Vocabulary

Preprocessor = Callable[..., tf.data.Dataset]
Seeds = Sequence[tuple[tf.Tensor, tf.Tensor]]
Corrupt = Callable[[tf.Tensor, Seeds], tuple[tf.Tensor, tf.Tensor]]
# (lengths, features) -> (raw chunk length, a function from a chunk to its inputs and targets).
Pairs = Callable[[Lengths, OutputFeatures], tuple[int, Corrupt]]

SEEDS = 3  # per chunk: two to sample a noise mask and one to shift it, or one and two to apply it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective(Examples):
    """The preprocessors of a seqio Task, and the examples that they make.

    Attributes:
        name: its name in the registry and in configs.
        preprocessors: functions on a dataset, which take `sequence_length` and `output_features`
            by name if they need them, as a `seqio.Task` passes them. The first function only
            tokenizes, so that `cacheable` can put a cache after it.
        pairs: for an objective over chunks, how it makes a chunk's inputs and targets, each with
            its end token; raises ValueError, see `lengths.plan`.
    """

    name: str
    preprocessors: tuple[Preprocessor, ...]
    pairs: Pairs | None = None

    @property
    def cacheable(self) -> tuple[Any, ...]:
        """The preprocessors, with the placeholder of seqio's offline cache after the first.

        Whatever follows it is random or depends on lengths. A single preprocessor gets no cache.
        """
        first, *others = self.preprocessors
        return (first, seqio.CacheDatasetPlaceholder(), *others) if others else (first,)


def make(
    name: str, preprocessors: tuple[Preprocessor, ...], settings: Mapping[str, Any] | None = None
) -> Objective:
    """Make the objective of a name in `batches.objective_examples`.

    Args:
        name: its name in the registry and in configs.
        preprocessors: see `Objective`.
        settings: the settings of the objective, some of which may change its examples.
    """
    found = examples_of(name, settings or {})
    return Objective(name=name, preprocessors=preprocessors, **vars(found))


def objective_over_chunks(
    name: str,
    *,
    sizes: Callable[[int], Sizes],
    corruption: Callable[[int, Vocabulary], Corrupt],
) -> Objective:
    """Make an objective that turns each chunk of running text into an (inputs, targets) pair.

    Args:
        name: the objective's name, also for messages.
        sizes: raw tokens of a chunk -> the most tokens that it can become.
        corruption: (raw chunk length, vocabulary) -> a function of (tokens int32 [L],
            `SEEDS` stateless seeds) that returns (inputs [S], targets [T]), both without EOS.
            L is the chunk length; only the last chunk of a dataset may be shorter.

    Raises (when the dataset is built, before anything is read):
        ValueError: see `lengths.plan`.
    """

    def pairs(sequence_length: Lengths, output_features: OutputFeatures) -> tuple[int, Corrupt]:
        chunk_length = plan(
            name, sizes=sizes, sequence_length=sequence_length, output_features=output_features
        )
        corrupt = corruption(chunk_length, output_features["targets"].vocabulary.plain)

        def pair(tokens: tf.Tensor, seeds: Seeds) -> tuple[tf.Tensor, tf.Tensor]:
            inputs, targets = corrupt(tokens, seeds)
            return (
                chunking.end_with_eos(inputs, feature=output_features["inputs"]),
                chunking.end_with_eos(targets, feature=output_features["targets"]),
            )

        return chunk_length, pair

    def corrupt_chunks(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        chunk_length, pair = pairs(sequence_length, output_features)

        @seqio.map_over_dataset(num_seeds=SEEDS)
        def to_pair(example: dict[str, tf.Tensor], seeds: Seeds) -> dict[str, tf.Tensor]:
            inputs, targets = pair(example["targets"], seeds)
            return {"inputs": inputs, "targets": targets}

        return to_pair(chunking.concatenate_and_split(dataset, length=chunk_length))

    made = make(name, (chunking.tokenize, corrupt_chunks))
    return dataclasses.replace(made, pairs=pairs)
