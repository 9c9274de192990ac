"""Language modeling: predict the whole text, or its second part from its first."""

import tensorflow as tf

from t5x_like.batches.chunk_lengths import Sizes
from t5x_like.preprocessing.objectives.objective import (
    Corrupt,
    Objective,
    Seeds,
    make,
    objective_over_chunks,
)
from t5x_like.preprocessing.objectives.running_text import chunking
from t5x_like.preprocessing.objectives.running_text.lengths import (
    Lengths,
    OutputFeatures,
    check_features,
)
from t5x_like.preprocessing.objectives.running_text.noise import random_prefix_mask
from t5x_like.vocabularies import Vocabulary


def language_modeling() -> Objective:
    """Predict every token from the tokens before it (T5, section 3.2.3, the "LM" rows).

    Targets are running text, cut to exactly the targets length; EOS is at the end of each document,
    not of each chunk. For decoder-only models: there are no inputs.
    """

    def split_documents(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        check_features(
            "language_modeling",
            names=("targets",),
            lengths=sequence_length,
            features=output_features,
        )
        assert sequence_length is not None  # checked above; for the type checker
        feature = output_features["targets"]
        # An empty document would leave two EOS in a row, which no text contains.
        documents = dataset.filter(lambda example: tf.size(example["targets"]) > 0).map(
            lambda example: {"targets": chunking.end_with_eos(example["targets"], feature=feature)},
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        return chunking.concatenate_and_split(documents, length=sequence_length["targets"])

    return make("language_modeling", (chunking.tokenize, split_documents))


def prefix_lm() -> Objective:
    """Predict the second part of a chunk from its first (T5, section 3.2.3 and table 3, row 1).

    The chunk is as long as the inputs and is cut at a uniformly random position, so that neither
    part is empty. Half of a row is padding on average, unless it is packed. Targets must be as
    long as the inputs.
    """

    def corruption(chunk_length: int, vocabulary: Vocabulary) -> Corrupt:
        del chunk_length, vocabulary

        def corrupt(tokens: tf.Tensor, seeds: Seeds) -> tuple[tf.Tensor, tf.Tensor]:
            prefix = random_prefix_mask(tf.size(tokens), seed=seeds[0])
            return tf.boolean_mask(tokens, prefix), tf.boolean_mask(tokens, ~prefix)

        return corrupt

    return objective_over_chunks(
        "prefix_lm",
        sizes=lambda length: Sizes(inputs=length - 1, targets=length - 1),
        corruption=corruption,
    )
