"""The words of a text in any script, as metrics of texts count them.

Of ASCII they are what rouge-score finds: runs of letters and digits in lower case, stemmed. Beyond,
a word is a run of letters, digits and the marks on them (Unicode's categories L, N and M), and
scripts that write no spaces between words are counted by character.
"""

import functools
import unicodedata
from typing import Any

# The beginnings of Unicode's names of the characters of scripts without spaces between words.
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
    # Joiners are within words of Persian and Hindi.
    is_invisible = category == "Cf" and character != _ZERO_WIDTH_SPACE
    return _INVISIBLE if is_invisible else _NONE


def is_unspaced(character: str) -> bool:
    """Whether a character belongs to a script that writes no spaces between words."""
    return _kind(character) == _CHARACTER


def words(text: str) -> list[str]:
    """The words of a text in lower case; compatible characters are equal (NFKC)."""
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
        """The words of a text; of ASCII words of more than 3 letters the stems."""
        return [
            self._stem(word) if word.isascii() and len(word) > 3 else word for word in words(text)
        ]
