"""Vocabularies of whole words: for networks that read characters of words, and Transformer-XL's.

The file for the former has the format of the released ELMo's: one word per line, frequent words
first, including <S> and </S>, which begin and end a text, and <UNK>. Only predictions are limited
to its words: a word that it lacks is read by its characters like any other.
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int
from tokenizers import pre_tokenizers

from t5x_like.vocabularies.base import Offsets, Vocabulary
from t5x_like.vocabularies.special_tokens import SpecialTokenVocabulary

START, END, UNKNOWN = WORD_SPECIAL_TOKENS = ("<S>", "</S>", "<UNK>")
LONGEST = 50  # character ids of a word, including the marks around it
# Character ids 1 to 256 are bytes; 0 is padding after the end of a text.
_START_OF_TEXT, _END_OF_TEXT, _START_OF_WORD, _END_OF_WORD, _NOTHING = range(257, 262)


def spell(word: str) -> Int[np.ndarray, "50"]:
    """Return the character ids of a word: its UTF-8 bytes, at most 48, between two marks.

    <S> and </S> have one character each, which no other word has.
    """
    letters = [byte + 1 for byte in word.encode("utf-8", errors="replace")[: LONGEST - 2]]
    letters = {START: [_START_OF_TEXT], END: [_END_OF_TEXT]}.get(word, letters)
    characters = np.full(LONGEST, _NOTHING, np.int32)
    characters[: len(letters) + 2] = [_START_OF_WORD, *letters, _END_OF_WORD]
    return characters


def spell_all(words: Iterable[str]) -> Int[np.ndarray, "L 50"]:
    """Return the character ids of words."""
    return np.array([spell(word) for word in words], np.int32).reshape(-1, LONGEST)


def spell_texts(texts: Sequence[Sequence[str]]) -> Int[np.ndarray, "B L 50"]:
    """Return the character ids of texts, each between <S> and </S>; 0 after the end of a text."""
    spelled = [spell_all([START, *words, END]) for words in texts]
    out = np.zeros([len(texts), max(map(len, spelled), default=0), LONGEST], np.int32)
    for row, word_ids in zip(out, spelled, strict=True):
        row[: len(word_ids)] = word_ids
    return out


def split(text: str) -> list[tuple[str, tuple[int, int]]]:
    """Split a text at blanks and around punctuation into (word, its range of characters)."""
    return _PUNCTUATION.pre_tokenize_str(text)


_PUNCTUATION = pre_tokenizers.BertPreTokenizer()
_BLANKS = pre_tokenizers.WhitespaceSplit()


class WordVocabulary(SpecialTokenVocabulary):
    """A vocabulary of the words that a file lists.

    The text between two blanks is a word if the file has it, so that text that is already tokenized
    ("do n't") does not change. Otherwise it is split around punctuation.

    Args:
        words: the lines of the file.

    Raises:
        ValueError: one of <S>, </S> and <UNK> is missing, or there is a word twice.
    """

    def __init__(self, words: Sequence[str]):
        missing = [name for name in WORD_SPECIAL_TOKENS if name not in words]
        if missing:
            raise ValueError(f"lacks the words {', '.join(missing)}.")
        self._ids = {word: number for number, word in enumerate(words)}
        if len(self._ids) < len(words):
            twice = next(word for number, word in enumerate(words) if self._ids[word] != number)
            raise ValueError(f"has the word {twice!r} on two lines.")
        contents = "\n".join(words).encode()
        super().__init__(words, special_tokens=WORD_SPECIAL_TOKENS, contents=contents)
        self.bos_id, self.eos_id, self.unk_id = (self._ids[token] for token in WORD_SPECIAL_TOKENS)

    def words(self, text: str) -> list[str]:
        """Return the words of a text, including words that the file lacks."""
        return [word for word, _ in self._split(text)]

    def id_of(self, word: str) -> int:
        """Return the id of a word, or the id of <UNK> if the file lacks the word."""
        return self._ids.get(word, self._ids[UNKNOWN])

    def encode(self, text: str) -> list[int]:
        """Return the ids of the words of a text."""
        return [self.id_of(word) for word in self.words(text)]

    def _encode_with_offsets(self, text: str) -> tuple[list[int], Offsets]:
        words = self._split(text)
        return [self.id_of(word) for word, _ in words], [span for _, span in words]

    def _split(self, text: str) -> list[tuple[str, tuple[int, int]]]:
        words: list[tuple[str, tuple[int, int]]] = []
        for chunk, (start, end) in _BLANKS.pre_tokenize_str(text):
            if chunk in self._ids:
                words.append((chunk, (start, end)))
            else:
                words += [(word, (start + a, start + b)) for word, (a, b) in split(chunk)]
        return words

    def _decode(self, ids: Sequence[int]) -> str:
        size = len(self.pieces)
        return " ".join(self.pieces[number] if 0 <= number < size else UNKNOWN for number in ids)

    def _begins_word(self, piece: str) -> bool:
        return True


class TokenizedWords(SpecialTokenVocabulary):
    """A vocabulary of words for texts whose words are between blanks, such as WikiText's.

    A line break is `<eos>`, which also ends a text, and a word that the file lacks is `<unk>`.

    Args:
        words: the words, in the order of their ids.

    Raises:
        ValueError: there is no `<eos>`, no `<unk>` or `<UNK>`, or a word is there twice.
    """

    def __init__(self, words: Sequence[str]):
        self._ids = {word: number for number, word in enumerate(words)}
        if len(self._ids) < len(words):
            twice = next(word for number, word in enumerate(words) if self._ids[word] != number)
            raise ValueError(f"has the word {twice!r} on two lines.")
        unknown = next((name for name in ("<UNK>", "<unk>") if name in self._ids), "")
        if not unknown or _LINE_END not in self._ids:
            raise ValueError(f"lacks the word {'<unk>' if not unknown else _LINE_END}.")
        special = (_LINE_END, unknown)
        super().__init__(words, special_tokens=special, contents="\n".join(words).encode())
        self.eos_id, self.unk_id = (self._ids[name] for name in special)
        self._unknown = self._ids[unknown]

    def encode(self, text: str) -> list[int]:
        """Return the ids of the words of a text."""
        return self._encode_with_offsets(text)[0]

    def _encode_with_offsets(self, text: str) -> tuple[list[int], Offsets]:
        matches = [*_WORDS.finditer(text)]
        words = (_LINE_END if match.group() == "\n" else match.group() for match in matches)
        return [self._ids.get(word, self._unknown) for word in words], [
            match.span() for match in matches
        ]

    def _decode(self, ids: Sequence[int]) -> str:
        size = len(self.pieces)
        pieces = (self.pieces[number if 0 <= number < size else self._unknown] for number in ids)
        return " ".join("\n" if piece == _LINE_END else piece for piece in pieces)

    def _begins_word(self, piece: str) -> bool:
        return True


_LINE_END = "<eos>"
_WORDS = re.compile(r"\n|\S+")


def check_words(vocabulary: Vocabulary) -> WordVocabulary:
    """Return the vocabulary, if it is a `WordVocabulary`.

    Raises:
        ValueError: it is another vocabulary.
    """
    if not isinstance(vocabulary, WordVocabulary):
        raise ValueError(
            f"vocabulary={vocabulary} is not one of whole words, as ELMo needs it: train one with "
            "`python -m t5x_like.vocabulary --kind=words`"
        )
    return vocabulary
