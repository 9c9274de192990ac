"""Byte-pair encoding in plain Python (Sennrich et al. 2016): the most frequent pair is merged."""

import collections
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

from t5x_like.names import choose

END = "</w>"
SymbolPair = tuple[str, str]


def train(
    words: Mapping[str, int], size: int, *, ties: str = "oldest", attached: bool = False
) -> list[SymbolPair]:
    """Learn merges (algorithm 1).

    A word is first a sequence of characters and the end-of-word mark `END`. The text of the paper
    does not say which of equally frequent pairs is merged. Its program takes the first in the
    order of the words; `BpeTrainer` of the library `tokenizers` takes the pair with the oldest
    left piece, then with the oldest right piece. Characters are older than merged pieces: first
    all without a mark, in the order of their code points, then all with a mark.

    Args:
        words: how often each word occurs.
        size: the number of pieces to reach, with characters and `END`.
        ties: "oldest" as in the library, or "first" as in the paper's program.
        attached: the mark is a part of the last character, as in the authors' later versions and
            in GPT's vocabulary.

    Returns:
        The pairs of pieces, in the order in which they were merged.

    Raises:
        ValueError: there are no words, or the size is below the number of characters, or above
            what the words give, or `ties` does not exist.
    """
    check_words(words)
    _, merges = learn(
        SegmentedWords({word: symbols(word, attached=attached) for word in words}, words),
        size,
        score=frequency,
        ties=ties,
        marked=lambda piece: piece.endswith(END),
    )
    return merges


def encode(word: str, merges: Sequence[SymbolPair], *, attached: bool = False) -> list[str]:
    """Return the pieces of a word: each merge, in the order of learning, is applied to all of it.

    Characters that no word of the training had are pieces, too.
    """
    pieces = symbols(word, attached=attached)
    for pair in merges:
        pieces = merge(pieces, pair, "".join(pair))
    return pieces


def symbols(word: str, *, attached: bool) -> list[str]:
    """Split a word into its characters and the end-of-word mark."""
    return [*word[:-1], word[-1:] + END] if attached else [*word, END]


def merge(pieces: Sequence[str], pair: SymbolPair, joined: str) -> list[str]:
    """Put `joined` where the pair stands, from left to right."""
    merged: list[str] = []
    for piece in pieces:
        if merged and (merged[-1], piece) == pair:
            merged[-1] = joined
        else:
            merged.append(piece)
    return merged


class SegmentedWords:
    """Words split into pieces, with the counts of pieces and of pairs, while pairs are merged.

    Args:
        pieces: the pieces of each word.
        words: how often each word occurs.

    Attributes:
        segmentation: the pieces of each word at present.
        counts: how often each piece occurs in all words.
        pairs: how often each two pieces are neighbours. Pairs that overlap ("aaa") all count.
        total: the number of pieces in all words.
    """

    def __init__(self, pieces: Mapping[str, list[str]], words: Mapping[str, int]):
        self.segmentation, self._words = dict(pieces), words
        self.counts: collections.Counter[str] = collections.Counter()
        self.pairs: collections.Counter[SymbolPair] = collections.Counter()
        self.total = 0
        for word, count in words.items():
            self._add(pieces[word], count)

    def merge(self, pair: SymbolPair, joined: str) -> None:
        """Merge a pair in all words; only words that have it are counted anew."""
        for word, pieces in self.segmentation.items():
            if pair in itertools.pairwise(pieces):
                self._add(pieces, -self._words[word])
                self.segmentation[word] = merge(pieces, pair, joined)
                self._add(self.segmentation[word], self._words[word])

    def _add(self, pieces: list[str], count: int) -> None:
        self.total += count * len(pieces)
        for piece in pieces:
            self.counts[piece] += count
        for pair in itertools.pairwise(pieces):
            self.pairs[pair] += count
            if not self.pairs[pair]:
                del self.pairs[pair]


def frequency(words: SegmentedWords, pair: SymbolPair) -> float:
    """Return the score of a pair in BPE: how often it occurs."""
    return words.pairs[pair]


def learn(
    words: SegmentedWords,
    size: int,
    *,
    score: Callable[[SegmentedWords, SymbolPair], float],
    ties: str,
    marked: Callable[[str], bool],
    join: Callable[[str, str], str] = str.__add__,
) -> tuple[list[str], list[SymbolPair]]:
    """Merge the pair with the highest score until there are `size` pieces.

    Args:
        score: the score of a pair in the words at present.
        ties: which of the pairs with the highest score is merged, a name in `TIES`.
        marked: whether a character has a mark; these come after the other characters.
        join: makes one piece of two.

    Returns:
        The pieces, the oldest first, and the merges.

    Raises:
        ValueError: the size is below the number of characters, or above what the words give, or
            `ties` does not exist.
    """
    select = choose("ties", ties, TIES)
    characters = sorted(words.counts, key=lambda piece: (marked(piece), piece))
    check_size(size, characters)
    ids = {piece: number for number, piece in enumerate(characters)}
    merges = []
    while len(ids) < size:
        if not words.pairs:
            raise ValueError(f"size={size}: the words give only {len(ids)} pieces.")
        scores = {pair: score(words, pair) for pair in words.pairs}
        best = max(scores.values())
        pair = select({pair for pair in scores if scores[pair] == best}, words, ids)
        joined = join(*pair)
        words.merge(pair, joined)
        ids.setdefault(joined, len(ids))
        merges.append(pair)
    return list(ids), merges


def oldest(pairs: set[SymbolPair], words: SegmentedWords, ids: Mapping[str, int]) -> SymbolPair:
    """Return the pair whose left piece has the lowest id, and of these the right."""
    return min(pairs, key=lambda pair: (ids[pair[0]], ids[pair[1]]))


def first(pairs: set[SymbolPair], words: SegmentedWords, ids: Mapping[str, int]) -> SymbolPair:
    """Return the pair that comes first in the words, in their order."""
    everywhere = itertools.chain.from_iterable(map(itertools.pairwise, words.segmentation.values()))
    return next(pair for pair in everywhere if pair in pairs)


TIES = {"oldest": oldest, "first": first}


def check_words(words: Mapping[str, int]) -> None:
    """Raise ValueError if there are no words to learn from, or a word without letters or count."""
    if not words:
        raise ValueError("There are no words to learn pieces from.")
    for word, count in words.items():
        if not word or count < 1:
            raise ValueError(f"words[{word!r}]={count}: words have characters, and counts from 1.")


def check_size(size: int, characters: Collection[str]) -> None:
    """Raise ValueError if a vocabulary of this size cannot have all characters."""
    if size < len(characters):
        raise ValueError(
            f"size={size}: at least {len(characters)} are needed, since each character is a piece."
        )
