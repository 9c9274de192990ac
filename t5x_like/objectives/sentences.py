"""Split documents into sentences and tokenize them, the first step of objectives over groups."""

import re

import numpy as np
from jaxtyping import Int32

from t5x_like.vocabularies import Vocabulary

# A full stop, question or exclamation mark, optionally with a closing quote or bracket, then
# whitespace and the beginning of a sentence: any letter or digit except a to z, optionally after an
# opening quote or bracket.
_BREAK = re.compile(
    r"""\s*\n\s*|(?:(?<=[.!?])|(?<=[.!?]["'\u201d\u2019)\]]))\s+(?=["'\u201c\u2018(\[]?[^\W_a-z])"""
)


def split(text: str) -> list[str]:
    """Return the sentences of a text, none of them empty, without surrounding whitespace.

    They end at line breaks and at the punctuation of `_BREAK`, which splits "Dr. Who": for
    BERT's purposes a sentence is any run of text (Devlin et al. 2019, section 3).
    """
    return [sentence for sentence in _BREAK.split(text.strip()) if sentence]


def encode(
    text: str, vocabulary: Vocabulary, *, between: str = ""
) -> tuple[Int32[np.ndarray, " L"], Int32[np.ndarray, " S"]]:
    """Return the tokens of a text, and the number of tokens of each sentence.

    Each sentence is tokenized separately, without special tokens.

    Args:
        between: inserted before every sentence except the first.
    """
    found = split(text)
    sentences = [*found[:1], *(between + sentence for sentence in found[1:])]
    encoded = [vocabulary.encode(sentence) for sentence in sentences]
    lengths = np.array([len(tokens) for tokens in encoded], np.int32)
    return np.array([token for tokens in encoded for token in tokens], np.int32), lengths
