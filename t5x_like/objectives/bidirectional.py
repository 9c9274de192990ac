"""Bidirectional language modeling: two streams of words and their characters."""

import numpy as np
from jaxtyping import Int

from t5x_like.objectives.objective import Example, ExampleSpec, OfChunks, RunningText
from t5x_like.vocabularies import Vocabulary
from t5x_like.vocabularies.words import (
    END,
    LONGEST,
    START,
    WordVocabulary,
    check_words,
    spell_all,
)

# The number of values of each feature per position of the streams.
_SIZES = {
    "inputs": 1,
    "targets": 1,
    "backward_targets": 1,
    "characters": LONGEST,
    "backward_characters": LONGEST,
}
_VALUES = sum(_SIZES.values())  # of a position of a stream


def bidirectional_lm() -> RunningText:
    """Predict each word from the words before it, and from the words after it (ELMo, section 3.1).

    Peters et al. 2018. Each document adds to two streams, one for each direction:

        inputs            <S>  he   came        what the forward direction reads, as ids,
        characters                              and by its characters
        targets           he   came </S>
        backward_...      </S> came he          what the backward direction reads, by characters
        backward_targets  came he   <S>

    The streams continue across documents, and are cut into rows of the inputs' length.
    """

    def plan(spec: ExampleSpec) -> tuple[int, OfChunks]:
        length = spec.lengths.get("inputs") or 0
        if length < 1:
            raise ValueError(f"data.lengths.inputs={length} must be 1 or more words a row")
        check_words(spec.features["inputs"].vocabulary)
        return length * _VALUES, _examples

    return RunningText(
        name="bidirectional_lm",
        features=(*_SIZES,),
        converters=("encoder",),
        converter_settings={"features": (*_SIZES,), "loss_on": "all"},
        plan=plan,
        encode=_encode,
    )


def _encode(text: str, vocabulary: Vocabulary) -> Int[np.ndarray, " L*{_VALUES}"]:
    return streams(text, check_words(vocabulary)).reshape(-1)


def streams(text: str, vocabulary: WordVocabulary) -> Int[np.ndarray, "L {_VALUES}"]:
    """Return the positions of both streams for a document; none for a text without words."""
    words = vocabulary.words(text)
    if not words:
        return np.zeros([0, _VALUES], np.int32)
    marked_words = [START, *words, END]
    ids = np.array([vocabulary.id_of(word) for word in marked_words], np.int32)
    characters = spell_all(marked_words)
    parts = [ids[:-1, None], ids[1:, None], ids[-2::-1, None], characters[:-1], characters[:0:-1]]
    return np.concatenate(parts, axis=1)


def _examples(
    chunks: Int[np.ndarray, " B L*{_VALUES}"], generator: np.random.Generator
) -> list[Example]:
    del generator
    ends = np.cumsum([*_SIZES.values()])[:-1]
    parts = np.split(chunks.reshape(len(chunks), -1, _VALUES), ends, axis=2)
    features = {
        name: part.reshape(len(chunks), -1) for name, part in zip(_SIZES, parts, strict=True)
    }
    return [{name: rows[index] for name, rows in features.items()} for index in range(len(chunks))]
