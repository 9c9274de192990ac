"""Split texts in any script into words, for metrics of texts.

In ASCII, words are defined as by rouge-score: runs of letters and digits in lower case, stemmed.
Otherwise, a word is a run of letters, digits and their combining marks (Unicode's categories L, N
and M), and scripts without spaces between words are split into characters.
"""

import functools
import unicodedata
from typing import Any

# Prefixes of the Unicode names of characters in scripts without spaces between words.
_UNSPACED = (
    *("CJK ", "IDEOGRAPHIC ", "HIRAGANA ", "KATAKANA", "BOPOMOFO ", "YI SYLLABLE"),
    *("THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN ", "JAVANESE "),
)
_NONE, _WORD, _MARK, _CHARACTER, _INVISIBLE = range(5)
_ZERO_WIDTH_SPACE = "\u200b"


@functools.cache
def _kind(character: str) -> int:
    category = unicodedata.category(character)
    if category[0] == "M":
        return _MARK
    if category[0] in "LN":
        unspaced = unicodedata.name(character, "").startswith(_UNSPACED)
        return _CHARACTER if unspaced else _WORD
    # Invisible joiners occur within words of Persian and Hindi.
    is_invisible = category == "Cf" and character != _ZERO_WIDTH_SPACE
    return _INVISIBLE if is_invisible else _NONE


def is_unspaced(character: str) -> bool:
    """Return whether a character belongs to a script without spaces between words."""
    return _kind(character) == _CHARACTER


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, after NFKC normalization."""
    found: list[str] = []
    before = _NONE
    for character in unicodedata.normalize("NFKC", text).lower():
        kind = _kind(character)
        if kind == _INVISIBLE:
            continue
        if kind == _CHARACTER or (kind == _WORD and before != _WORD):
            found.append(character)
        elif kind == _WORD or (kind == _MARK and before != _NONE):
            found[-1] += character
        if kind != _MARK:
            before = kind
    return found


class RougeWords:
    """The tokenizer of rouge-score's `RougeScorer`, for texts in any script."""

    def __init__(self) -> None:
        from nltk.stem import porter

        self._stem = porter.PorterStemmer().stem

    def tokenize(self, text: str) -> list[Any]:
        """Return the words of a text; ASCII words of more than 3 letters are stemmed."""
        return [
            self._stem(word) if word.isascii() and len(word) > 3 else word for word in words(text)
        ]
