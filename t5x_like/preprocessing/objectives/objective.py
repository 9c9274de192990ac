"""What a pretraining objective is: preprocessors from text to the features of a batch."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from t5x_like.preprocessing.objectives.running_text import chunking
from t5x_like.preprocessing.objectives.running_text.lengths import (
    Lengths,
    OutputFeatures,
    Sizes,
    plan,
)
from t5x_like.vocabularies import Vocabulary

Preprocessor = Callable[..., tf.data.Dataset]
Seeds = Sequence[tuple[tf.Tensor, tf.Tensor]]
Corrupt = Callable[[tf.Tensor, Seeds], tuple[tf.Tensor, tf.Tensor]]

SEEDS = 3  # per chunk: two for drawing a noise mask, or one and two for applying it


@dataclasses.dataclass(frozen=True)
class Objective:
    """The preprocessors of a seqio Task, and what they leave for the batch converter.

    Attributes:
        name: the spelling in the registry and in configs.
        preprocessors: callables on a dataset, which take `sequence_length` and `output_features`
            by name where they need them, as a `seqio.Task` injects them. The first one only
            tokenizes: `seqio.CacheDatasetPlaceholder()` may be put after it.
        features: the token features of an example afterwards, int32 [L] each, EOS included where
            the Task's feature has `add_eos`.
        converters: names of the converters that make batches of the features, the paper's own
            first. "prefix_lm" puts targets after inputs; "encoder" needs targets that are aligned
            with the inputs token by token.
        converter_settings: of those converters, unless a config says otherwise.
        special_tokens: whether inputs and targets begin with [CLS] and end with [SEP], or <s> and
            </s> as in BART.
    """

    name: str
    preprocessors: tuple[Preprocessor, ...]
    features: tuple[str, ...]
    converters: tuple[str, ...]
    converter_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    special_tokens: bool = False


def objective_over_chunks(
    name: str,
    *,
    sizes: Callable[[int], Sizes],
    corruption: Callable[[int, Vocabulary], Corrupt],
    converters: tuple[str, ...],
) -> Objective:
    """The objective that makes each chunk of running text into one (inputs, targets) pair.

    Args:
        name: the objective's name, for messages too.
        sizes: the most tokens that a chunk of so many raw tokens can become.
        corruption: (raw chunk length, vocabulary) -> a function of (tokens int32 [L],
            `SEEDS` stateless seeds) that gives (inputs [S], targets [T]), neither with EOS.
            L is the chunk length, less for the last chunk of a dataset alone.
        converters: see `Objective`.

    Raises (when the dataset is built, before anything is read):
        ValueError: as `lengths.plan`.
    """

    def corrupt_chunks(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        chunk_length = plan(
            name, sizes=sizes, sequence_length=sequence_length, output_features=output_features
        )
        corrupt = corruption(chunk_length, output_features["targets"].vocabulary.plain)

        @seqio.map_over_dataset(num_seeds=SEEDS)
        def to_pair(example: dict[str, tf.Tensor], seeds: Seeds) -> dict[str, tf.Tensor]:
            inputs, targets = corrupt(example["targets"], seeds)
            return {
                "inputs": chunking.end_with_eos(inputs, feature=output_features["inputs"]),
                "targets": chunking.end_with_eos(targets, feature=output_features["targets"]),
            }

        return to_pair(chunking.concatenate_and_split(dataset, length=chunk_length))

    return Objective(
        name=name,
        preprocessors=(chunking.tokenize, corrupt_chunks),
        features=("inputs", "targets"),
        converters=converters,
    )
