"""Write labelled text as rows of words, which a network reads by their characters."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from t5x_like.batches.labelled_rows import Row
from t5x_like.vocabularies import Vocabulary
from t5x_like.vocabularies.words import END, START, check_words, spell_all


@dataclasses.dataclass(frozen=True)
class WordRow(Row):
    """A row of words.

    Attributes:
        characters: the characters of each word.
    """

    characters: Int[np.ndarray, "L 50"]


class WordRowWriter:
    """Writes texts as rows <S> words </S> of at most `length` words, including the marks.

    Raises:
        ValueError: the vocabulary is not one of words, or rows have no room for a word.
    """

    def __init__(self, vocabulary: Vocabulary, *, length: int):
        self._vocabulary, self._length = check_words(vocabulary), length
        if length < 3:
            raise ValueError(f"lengths.inputs={length}: rows of labelled text need 3 words or more")

    def of_text(self, text: str, second: str | None = None) -> WordRow:
        """Return the row of a text, or of two with </S> between them; a row too long is cut."""
        words = self._vocabulary.words(text)
        if second is not None:
            words += [END, *self._vocabulary.words(second)]
        return self._write(words)

    def of_words(self, words: Sequence[str]) -> tuple[WordRow, Int[np.ndarray, " W"]]:
        """Return the row of some words, and the position of each; 0 for words that are cut off."""
        places = np.arange(1, len(words) + 1, dtype=np.int32)
        return self._write(words), np.where(places < self._length - 1, places, 0)

    def _write(self, words: Sequence[str]) -> WordRow:
        words = [START, *words[: self._length - 2], END]
        ids = np.array([self._vocabulary.id_of(word) for word in words], np.int32)
        return WordRow(ids, np.zeros_like(ids), spell_all(words))
