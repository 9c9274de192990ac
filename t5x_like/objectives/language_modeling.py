"""Language modeling: predict the whole text, or its second part from its first."""

import numpy as np

from t5x_like.objectives.chunks import Ragged, Sizes, Tokens, pairs_of_chunks
from t5x_like.objectives.noise import random_prefixes
from t5x_like.objectives.objective import Example, ExampleSpec, OfChunks, RunningText
from t5x_like.vocabularies import Vocabulary


def language_modeling() -> RunningText:
    """Predict every token from the tokens before it (T5, section 3.2.3, the "LM" rows).

    Targets are running text, cut to exactly the targets length; EOS is at the end of each document,
    not of each chunk. For decoder-only models: examples have no inputs.
    """

    def plan(spec: ExampleSpec) -> tuple[int, OfChunks]:
        spec.check("language_modeling", "targets")
        return spec.lengths["targets"], _chunks

    return RunningText(
        name="language_modeling",
        features=("targets",),
        converters=("decoder",),
        plan=plan,
        end_documents=True,
    )


def _chunks(chunks: Tokens, generator: np.random.Generator) -> list[Example]:
    del generator
    return [{"targets": chunk} for chunk in chunks]


def prefix_lm() -> RunningText:
    """Predict the second part of a chunk from its first (T5, section 3.2.3 and table 3, row 1).

    The chunk is as long as the inputs and is cut at a uniformly random position, so that neither
    part is empty. Half of a row is padding on average, unless it is packed. Targets must be as
    long as the inputs.
    """

    def corrupt(
        tokens: Tokens, vocabulary: Vocabulary, generator: np.random.Generator
    ) -> tuple[Ragged, Ragged]:
        del vocabulary
        prefixes = random_prefixes(generator, tokens.shape)
        pairs = [(row[:end], row[end:]) for row, end in zip(tokens, prefixes, strict=True)]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    return pairs_of_chunks(
        "prefix_lm",
        # Each part has at most length - 1 tokens, and EOS: a chunk is as long as the inputs.
        sizes=lambda length: Sizes(inputs=length - 1, targets=length - 1),
        corrupt=corrupt,
        converters=("prefix_lm", "encoder_decoder"),
    )
