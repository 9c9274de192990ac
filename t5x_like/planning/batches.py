"""The shapes of a config's batches, from its converter, without data or a vocabulary."""

import jax
import ml_collections

from t5x_like.batches import converters
from t5x_like.batches.objective_examples import examples_of
from t5x_like.batches.packing import to_batch
from t5x_like.config import Phase, phases
from t5x_like.experiment.text_data import make_converter

Batch = dict[str, jax.ShapeDtypeStruct]


def largest(config: ml_collections.ConfigDict) -> Phase:
    """The phase of a run whose batches have the most tokens: what must fit into memory."""
    return max(phases(config), key=lambda phase: tokens(batch(phase.settings)))


def tokens(fields: Batch) -> int:
    """The tokens that a step reads, on all sides: as the log of a run counts them."""
    return sum(x.size for name, x in fields.items() if name.endswith("input_tokens"))


def batch(config: ml_collections.ConfigDict) -> Batch:
    """The global batch of a config, or of a phase of one.

    Raises:
        ValueError: a converter or an objective that does not exist or do not suit each other, or a
            length that is not set.
    """
    data = config.data
    examples = examples_of(data.objective, data.objective_settings)
    converter = make_converter(data, examples, vocabulary=None)
    lengths = data.lengths.to_dict()
    converters.check(converter, features=examples.features, lengths=lengths, pack=data.pack)
    lengths = converter.feature_lengths(lengths)
    row = to_batch([[]], converter=converter, lengths=lengths, pack=data.pack)
    return {
        name: jax.ShapeDtypeStruct((data.batch_size, *values.shape[1:]), values.dtype)
        for name, values in row.items()
    }
