"""Language modeling: predict the whole text, or its second part from its first."""

import numpy as np

from t5x_like.objectives.chunks import Sizes, Tokens, pairs_of_chunks
from t5x_like.objectives.noise import random_prefix
from t5x_like.objectives.objective import OfChunk, Plan, RunningText
from t5x_like.vocabularies import Vocabulary


def language_modeling() -> RunningText:
    """Predict every token from the tokens before it (T5, section 3.2.3, the "LM" rows).

    Targets are running text, cut to exactly the targets length; EOS is at the end of each document,
    not of each chunk. For decoder-only models: there are no inputs.
    """

    def plan(given: Plan) -> tuple[int, OfChunk]:
        given.check("language_modeling", "targets")
        return given.lengths["targets"], lambda chunk, generator: {"targets": chunk}

    return RunningText(
        name="language_modeling",
        features=("targets",),
        converters=("decoder",),
        plan=plan,
        end_documents=True,
    )


def prefix_lm() -> RunningText:
    """Predict the second part of a chunk from its first (T5, section 3.2.3 and table 3, row 1).

    The chunk is as long as the inputs and is cut at a uniformly random position, so that neither
    part is empty. Half of a row is padding on average, unless it is packed. Targets must be as
    long as the inputs.
    """

    def corrupt(
        tokens: Tokens, vocabulary: Vocabulary, generator: np.random.Generator
    ) -> tuple[Tokens, Tokens]:
        del vocabulary
        prefix = random_prefix(generator, len(tokens))
        return tokens[:prefix], tokens[prefix:]

    return pairs_of_chunks(
        "prefix_lm",
        sizes=lambda length: Sizes(inputs=length - 1, targets=length - 1),
        corrupt=corrupt,
        converters=("prefix_lm", "encoder_decoder"),
    )
